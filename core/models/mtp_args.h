// Options of multi-token prediction, named as in Megatron without "mtp_". Needs no libtorch.
#pragma once

#include <cstdint>

namespace concord {

struct MtpArgs {
  int64_t num_layers = 0;  // MTP layers to train, at most those in the model's files; 0: none
  // Factor of the mean over depths of the MTP losses in the gradient; each of them is a mean over its tokens.
  double loss_scaling_factor = 0.1;
  bool operator==(const MtpArgs&) const = default;
};

}  // namespace concord
