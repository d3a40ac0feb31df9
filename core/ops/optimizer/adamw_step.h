// The scalars of one AdamW step, for the loops on the host (core/optim/rules/adamw.h) and the operator (adamw.h).
#pragma once

namespace concord {

struct AdamWStep {
  float grad_scale;       // factor of the gradients: clipping, 1 / loss scale
  float decay;            // 1 - lr * weight_decay
  float one_minus_beta1;  // 1 - beta1
  float beta2;
  float one_minus_beta2;        // 1 - beta2
  float step_size;              // lr / (1 - beta1^t)
  float sqrt_bias_correction2;  // sqrt(1 - beta2^t)
  float eps;
};

}  // namespace concord
