// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019), with PyTorch's order of operations:
//   w -= lr * weight_decay * w
//   m += (1 - beta1) (g - m)
//   v  = beta2 v + (1 - beta2) g g
//   w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// One loop over flat memory on the host, without libtorch; core/optim/update_rule.h has the same for devices.
#pragma once

#include <cstdint>

#include "core/ops/optimizer/adamw_step.h"
#include "core/optim/flat_memory.h"

namespace concord {

struct AdamWSettings {
  double beta1, beta2, eps;
};
// |t| counts from 1.
AdamWStep adamw_step(const AdamWSettings& settings, double lr, double weight_decay, double grad_scale, int64_t t);

// The flat arrays of a parameter's part. |weights|, |m| and |v| are fp32.
struct AdamWArrays {
  FlatGrads grads;
  float* weights;
  float* m;
  float* v;
  FlatValues values;  // the 16-bit parameter that follows |weights|, or none
};
// Elements [begin, end). Threads: any, one per element.
void adamw(const AdamWStep& step, const AdamWArrays& arrays, int64_t begin, int64_t end);

}  // namespace concord
