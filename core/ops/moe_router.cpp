#include "core/ops/moe_router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <fmt/core.h>

#include "core/ops/check.h"
#include "core/ops/visit_type.h"

namespace concord {

Routing route_tokens(const at::Tensor& logits, const RouterOptions& options) {
  ops::check_floating("route_tokens", "logits", logits);
  if (logits.dim() < 1 || options.top_k < 1 || options.top_k > logits.size(-1)) {
    ops::refuse("route_tokens", fmt::format("logits is {} and top_k {}; must be [..., experts] with 1 <= top_k <= "
                                            "experts",
                                            ops::text_of(logits), options.top_k));
  }
  const at::Tensor wide = logits.to(ops::sum_type(logits.scalar_type()));
  const at::Tensor scores = options.pre_softmax ? at::softmax(wide, -1) : wide;
  auto [weights, experts] = at::topk(scores, options.top_k, -1);
  if (!options.pre_softmax) weights = at::softmax(weights, -1);
  if (options.normalise) weights = weights / weights.sum(-1, /*keepdim=*/true);
  return {weights, experts};
}

}  // namespace concord
