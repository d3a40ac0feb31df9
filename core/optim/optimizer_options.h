// What core/optim/optimizer.h is called with; needs no libtorch.
#pragma once

#include <string>

namespace concord {

// Named as in HF's, Megatron's and ROLL's arguments.
struct OptimizerOptions {
  std::string optimizer = "adam";  // "adam" (AdamW), "lion" or "sgd"
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double sgd_momentum = 0.9;
  double max_grad_norm = 1.0;  // 0: no clipping
  bool log_num_zeros_in_grad = false;
  bool optimizer_cpu_offload = false;     // state in the host's memory, where its part of the step is computed
  double optimizer_offload_fraction = 1;  // of the elements
  bool operator==(const OptimizerOptions&) const = default;
};

}  // namespace concord
