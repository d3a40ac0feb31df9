// What a user chooses about multi-token prediction, named as in Megatron without the "mtp_". Needs no libtorch.
#pragma once

#include <cstdint>

namespace concord {

struct MtpArgs {
  int64_t num_layers = 0;  // of those that the model's files have; 0: none is used
  // Of the mean of their losses, each the mean over its tokens, in the gradients.
  double loss_scaling_factor = 0.1;
  bool operator==(const MtpArgs&) const = default;
};

}  // namespace concord
