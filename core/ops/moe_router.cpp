#include "core/ops/moe_router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <fmt/core.h>

#include <limits>
#include <tuple>

#include "core/ops/check.h"
#include "core/ops/visit_type.h"

namespace concord {

namespace {

using at::Tensor;

void check(const Tensor& logits, const RouterOptions& options) {
  ops::check_floating("route_tokens", "logits", logits);
  if (logits.dim() < 1 || options.top_k < 1 || options.top_k > logits.size(-1)) {
    ops::refuse("route_tokens", fmt::format("logits is {} and top_k {}; must be [..., experts] with 1 <= top_k <= "
                                            "experts",
                                            ops::text_of(logits), options.top_k));
  }
  const int64_t experts = logits.size(-1), size = options.groups < 1 ? 0 : experts / options.groups;
  if (options.groups == 1) return;
  if (size < 2 || size * options.groups != experts || options.top_groups < 1 || options.top_groups > options.groups ||
      size * options.top_groups < options.top_k) {
    ops::refuse("route_tokens",
                fmt::format("{} experts in {} groups, {} of them for a token with top_k {}; groups must be equal, of "
                            "at least 2, and those of a token must have top_k experts",
                            experts, options.groups, options.top_groups, options.top_k));
  }
}

// Scores outside of a token's groups become -inf.
Tensor within_groups(const Tensor& scores, const RouterOptions& options) {
  if (options.groups == 1) return scores;
  const Tensor by_group = scores.unflatten(-1, {options.groups, scores.size(-1) / options.groups});
  const Tensor of_groups = std::get<0>(at::topk(by_group, 2, -1)).sum(-1);
  const Tensor chosen = std::get<1>(at::topk(of_groups, options.top_groups, -1));
  const Tensor outside = at::ones_like(of_groups, at::TensorOptions(at::kBool)).scatter_(-1, chosen, false);
  return by_group.masked_fill(outside.unsqueeze(-1), -std::numeric_limits<double>::infinity()).flatten(-2);
}

}  // namespace

Routing route_tokens(const Tensor& logits, const RouterOptions& options, const Tensor& bias) {
  check(logits, options);
  const Tensor wide = logits.to(ops::sum_type(logits.scalar_type()));
  const bool softmax_first = options.pre_softmax && !options.sigmoid;
  const Tensor scores = options.sigmoid ? at::sigmoid(wide) : softmax_first ? at::softmax(wide, -1) : wide;
  Tensor weights, experts;
  if (bias.defined() || options.groups > 1) {
    const Tensor biased = bias.defined() ? scores.detach() + bias : scores.detach();
    experts = std::get<1>(at::topk(within_groups(biased, options), options.top_k, -1));
    weights = scores.gather(-1, experts);
  } else {
    std::tie(weights, experts) = at::topk(scores, options.top_k, -1);
  }
  if (!options.sigmoid && !softmax_first) weights = at::softmax(weights, -1);
  // The sum of sigmoids may be 0.
  if (options.normalise) weights = weights / (weights.sum(-1, /*keepdim=*/true) + (options.sigmoid ? 1e-20 : 0));
  if (options.scale != 1) weights = weights * options.scale;
  return {weights, experts};
}

}  // namespace concord
