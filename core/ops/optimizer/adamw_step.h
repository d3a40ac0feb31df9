// The scalars of one AdamW step, for the loops on the host (core/optim/adamw.h) and the operator (adamw.h).
#pragma once

namespace concord {

struct AdamWStep {
  float grad_scale;  // factor for the gradients: clipping, loss scale
  float decay;       // 1 - lr * weight_decay
  float beta1_rest;  // 1 - beta1
  float beta2;
  float beta2_rest;             // 1 - beta2
  float step_size;              // lr / (1 - beta1^t)
  float sqrt_bias_correction2;  // sqrt(1 - beta2^t)
  float eps;
};

}  // namespace concord
