// Stochastic gradient descent with momentum, as PyTorch has it (no dampening, weight decay as a part of the gradient):
//   g += weight_decay w;   b = momentum b + g;   w -= lr b
// One loop over flat memory on the host; core/optim/update_rule.h has the same for devices.
#pragma once

#include <cstdint>

#include "core/optim/flat_memory.h"

namespace concord {

struct SgdStep {
  float grad_scale;
  float weight_decay;
  float momentum;
  float lr;
};

struct SgdArrays {
  FlatGrads grads;
  float* weights;
  float* momentum;
  FlatValues values;  // the 16-bit parameter that follows |weights|, or none
};
// Elements [begin, end). Threads: any, one per element.
void sgd(const SgdStep& step, const SgdArrays& arrays, int64_t begin, int64_t end);

}  // namespace concord
