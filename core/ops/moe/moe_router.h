// Mixture-of-experts routing: the experts of each token and their weights, in fp32 (fp64 for Double) whatever the type
// of the logits. Softmax scores without bias and groups are the operator concord::moe_route, for which a device can
// have a kernel; the others are composed of libtorch's operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace concord {

struct RouterOptions {
  int64_t top_k = 1;
  // Softmax over all experts, then the k largest (Hugging Face's routers; Megatron's moe_router_pre_softmax). False:
  // the k largest logits, then softmax over these.
  bool pre_softmax = true;
  bool normalise = false;  // divide the weights of a token by their sum (norm_topk_prob)
  // Sigmoid of each logit instead of softmax; pre_softmax is then ignored.
  bool sigmoid = false;
  double scale = 1;  // final factor of the weights
  // Number of equal groups of experts, each of at least 2. Experts are chosen from the top_groups groups with the
  // largest sums of their two best scores (DeepSeek-V3).
  int64_t groups = 1;
  int64_t top_groups = 1;
};

struct Routing {
  at::Tensor weights;  // [..., k], fp32 or fp64, by descending score; ties: the first expert
  at::Tensor experts;  // int64 [..., k]
};

// |logits| [..., experts]. |bias| [experts], if defined, is added to the scores for the choice, not to the weights.
// Throws ConfigError if there are fewer experts than top_k, or invalid groups.
Routing route_tokens(const at::Tensor& logits, const RouterOptions& options, const at::Tensor& bias = {});

}  // namespace concord
