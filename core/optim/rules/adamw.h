// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, algorithm 2), one update t of a weight
// w:
//   m_t = beta1 m_{t-1} + (1 - beta1) g_t                     first moment: the mean of the gradient
//   v_t = beta2 v_{t-1} + (1 - beta2) g_t^2                   second moment: the mean of its square
//   m^  = m_t / (1 - beta1^t),  v^ = v_t / (1 - beta2^t)      both without the bias towards their initial 0
//   w_t = w_{t-1} - lr (m^ / (sqrt(v^) + eps) + weight_decay w_{t-1})
// A loop over flat memory on the host, without libtorch, with PyTorch's order of operations. core/ops/optimizer/adamw.h
// is the operator for devices.
#pragma once

#include <cstdint>

#include "core/ops/optimizer/adamw_step.h"
#include "core/optim/flat_memory.h"

namespace concord {

struct AdamWSettings {
  double beta1, beta2, eps;
};
// Returns the scalars of update |t|, which counts from 1.
AdamWStep adamw_step(const AdamWSettings& settings, double lr, double weight_decay, double grad_scale, int64_t t);

// Flat arrays of a part of a parameter. |weights|, |m| and |v| are fp32.
struct AdamWArrays {
  FlatGrads grads;
  float* weights;
  float* m;
  float* v;
  FlatValues values;  // the 16-bit parameter, set to the rounded |weights|; or none
};
// Updates the elements [begin, end). Threads: any, one per element.
void adamw(const AdamWStep& step, const AdamWArrays& arrays, int64_t begin, int64_t end);

}  // namespace concord
