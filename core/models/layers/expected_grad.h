// What is known in forward of the gradient that backward will be given.
#pragma once

namespace concord {

// Of each token's loss, the same for all of them.
struct ExpectedGrad {
  double value = 0;         // 0: not known
  bool is_certain = false;  // backward follows, and with this gradient
};

}  // namespace concord
