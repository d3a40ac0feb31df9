// Lion (Chen et al., Symbolic discovery of optimization algorithms, 2023): every weight moves by the learning rate, in
// the direction that the sign says; weight decay is decoupled, as in AdamW:
//   w -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay w);   m = beta2 m + (1 - beta2) g
// One loop over flat memory on the host; core/optim/update_rule.h has the same for devices.
#pragma once

#include <cstdint>

#include "core/optim/flat_memory.h"

namespace concord {

struct LionStep {
  float grad_scale;
  float weight_decay;
  float beta1;
  float beta2;
  float lr;
};

struct LionArrays {
  FlatGrads grads;
  float* weights;
  float* momentum;
  FlatValues values;  // the 16-bit parameter that follows |weights|, or none
};
// Elements [begin, end). Threads: any, one per element.
void lion(const LionStep& step, const LionArrays& arrays, int64_t begin, int64_t end);

}  // namespace concord
