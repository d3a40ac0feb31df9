// Which experts a token is sent to, and with which weights: the scores of a mixture-of-experts router, in fp32 (fp64
// for Double) whatever the type of the logits. Softmax scores without bias and groups are the operator
// concord::moe_route, which a device can have a kernel for; the others are composed of libtorch's operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace concord {

struct RouterOptions {
  int64_t top_k = 1;
  // Softmax over all experts, then the k largest (Hugging Face's routers; Megatron's moe_router_pre_softmax). False:
  // the k largest logits, then softmax over these.
  bool pre_softmax = true;
  bool normalise = false;  // the weights of a token are divided by their sum (norm_topk_prob)
  // Sigmoid of each logit instead of softmax; pre_softmax means nothing then.
  bool sigmoid = false;
  double scale = 1;  // of the weights, in the end
  // Experts are in so many equal groups, of at least 2, and chosen from the top_groups of them that have the largest
  // sums of their two best scores (DeepSeek-V3).
  int64_t groups = 1;
  int64_t top_groups = 1;
};

struct Routing {
  at::Tensor weights;  // [..., k], fp32 or fp64, in the order of the scores that chose; of equal ones the first expert
  at::Tensor experts;  // int64 [..., k]
};

// |logits| [..., experts]. |bias| [experts], if it is defined, is added to the scores that choose, not to the weights.
// Throws ConfigError if there are fewer experts than top_k, or groups that do not fit.
Routing route_tokens(const at::Tensor& logits, const RouterOptions& options, const at::Tensor& bias = {});

}  // namespace concord
