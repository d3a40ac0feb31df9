// Which experts a token is sent to, and with which weights: the scores of a mixture-of-experts router, in fp32 (fp64
// for Double) whatever the type of the logits. Composed of libtorch's operators, which have the derivatives.
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
};

struct Routing {
  at::Tensor weights;  // [..., k], fp32 or fp64, largest first
  at::Tensor experts;  // int64 [..., k]
};

// |logits| [..., experts]. Throws ConfigError if there are fewer experts than top_k.
Routing route_tokens(const at::Tensor& logits, const RouterOptions& options);

}  // namespace concord
