#include "core/ops/moe/moe_router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "core/ops/check.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::moe_route_op {
namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;

// Softmax over all experts if |pre_softmax|, otherwise over the chosen ones; |normalise| divides the weights of a token
// by their sum.
Pair forward(const Tensor& logits, int64_t top_k, bool pre_softmax, bool normalise, double scale) {
  static const auto op = find<Pair(const Tensor&, int64_t, bool, bool, double)>("concord::moe_route");
  return op.call(logits, top_k, pre_softmax, normalise, scale);
}

Tensor backward(const Tensor& grad, const Tensor& logits, const Tensor& experts, bool pre_softmax, bool normalise,
                double scale) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, const Tensor&, bool, bool, double)>("concord::moe_route_backward");
  return op.call(grad, logits, experts, pre_softmax, normalise, scale);
}

// Returns the |k| largest of each row, NaN first, ties by lower index. A loop, since a sort would order all of them.
template <class S>
Tensor largest_on_host(const Tensor& wide, int64_t k) {
  const Tensor dense = wide.contiguous();
  auto sizes = wide.sizes().vec();
  const int64_t columns = sizes.back(), rows = columns == 0 ? 0 : wide.numel() / columns;
  sizes.back() = k;
  const Tensor chosen = at::empty(sizes, wide.options().dtype(at::kLong));
  std::vector<int64_t> order(static_cast<size_t>(columns));
  for (int64_t row = 0; row < rows; ++row) {
    const S* const values = dense.const_data_ptr<S>() + row * columns;
    std::iota(order.begin(), order.end(), int64_t{0});
    const auto comes_first = [values](int64_t a, int64_t b) {
      const bool a_is_nan = std::isnan(values[a]), b_is_nan = std::isnan(values[b]);
      if (a_is_nan || b_is_nan) return a_is_nan && (!b_is_nan || a < b);
      return values[a] > values[b] || (values[a] == values[b] && a < b);
    };
    std::partial_sort(order.begin(), order.begin() + k, order.end(), comes_first);
    std::copy_n(order.begin(), k, chosen.mutable_data_ptr<int64_t>() + row * k);
  }
  return chosen;
}

Tensor largest(const Tensor& wide, int64_t k) {
  // Not every device sorts fp64, the type of the reference results.
  if (wide.scalar_type() == at::kDouble) return largest_on_host<double>(wide.cpu(), k).to(wide.device());
  if (wide.is_cpu()) return largest_on_host<float>(wide, k);
  return std::get<1>(at::sort(wide, /*stable=*/true, -1, /*descending=*/true)).narrow(-1, 0, k).contiguous();
}

// Softmax is monotonic, so logits decide: they are not rounded.
Pair reference(const Tensor& logits, int64_t top_k, bool pre_softmax, bool normalise, double scale) {
  const Tensor wide = logits.to(sum_type(logits.scalar_type()));
  const Tensor experts = largest(wide, top_k);
  Tensor weights = pre_softmax ? at::softmax(wide, -1).gather(-1, experts) : at::softmax(wide.gather(-1, experts), -1);
  if (normalise) weights = weights / weights.sum(-1, /*keepdim=*/true);
  return {scale == 1 ? weights : weights * scale, experts};
}

// For w = s / sum s: ds = dw / sum s - sum(dw w) / sum s.
Tensor reference_backward(const Tensor& grad, const Tensor& logits, const Tensor& experts, bool pre_softmax,
                          bool normalise, double scale) {
  const auto type = sum_type(logits.scalar_type());
  const Tensor wide = logits.to(type);
  const Tensor scores = at::softmax(pre_softmax ? wide : wide.gather(-1, experts), -1);
  Tensor of_scores = scale == 1 ? grad : grad * scale;
  if (normalise) {
    const Tensor chosen = pre_softmax ? scores.gather(-1, experts) : scores, sum = chosen.sum(-1, /*keepdim=*/true);
    of_scores = of_scores / sum + (-of_scores * ((chosen / sum) / sum)).sum(-1, /*keepdim=*/true);
  }
  const Tensor none = at::zeros_like(wide);
  if (pre_softmax) {
    return at::_softmax_backward_data(none.scatter(-1, experts, of_scores), scores, -1, type).to(logits.scalar_type());
  }
  return none.scatter(-1, experts, at::_softmax_backward_data(of_scores, scores, -1, type)).to(logits.scalar_type());
}

Pair autograd(const Tensor& logits, int64_t top_k, bool pre_softmax, bool normalise, double scale) {
  Tensor chosen;
  const auto run = [&] {
    const auto [weights, experts] = forward(logits, top_k, pre_softmax, normalise, scale);
    chosen = experts;
    return Forward{weights, {logits, experts}};
  };
  const Tensor weights = differentiable("moe_route", {logits}, run, [pre_softmax, normalise, scale](const Backward& b) {
    return Tensors{backward(b.grad, b.saved[0], b.saved[1], pre_softmax, normalise, scale)};
  });
  return {weights, chosen};
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def(
      "moe_route(Tensor logits, int top_k, bool pre_softmax, bool normalise, float scale) -> (Tensor weights, Tensor "
      "experts)");
  m.def(
      "moe_route_backward(Tensor grad, Tensor logits, Tensor experts, bool pre_softmax, bool normalise, float scale) "
      "-> Tensor");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("moe_route", reference);
  m.impl("moe_route_backward", reference_backward);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("moe_route", autograd); }

}  // namespace
}  // namespace ops::moe_route_op

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

// Sets scores outside a token's groups to -inf.
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
  if (!options.sigmoid && !bias.defined() && options.groups == 1) {
    const auto [weights, experts] =
        ops::moe_route_op::forward(logits, options.top_k, options.pre_softmax, options.normalise, options.scale);
    return {weights, experts};
  }
  const Tensor wide = logits.to(ops::sum_type(logits.scalar_type()));
  const bool softmax_first = options.pre_softmax && !options.sigmoid;
  const Tensor scores = options.sigmoid ? at::sigmoid(wide) : softmax_first ? at::softmax(wide, -1) : wide;
  const Tensor biased = bias.defined() ? scores.detach() + bias : scores.detach();
  const Tensor experts = std::get<1>(at::topk(within_groups(biased, options), options.top_k, -1));
  Tensor weights = scores.gather(-1, experts);
  if (!options.sigmoid && !softmax_first) weights = at::softmax(weights, -1);
  // The sum of sigmoids may be 0.
  if (options.normalise) weights = weights / (weights.sum(-1, /*keepdim=*/true) + (options.sigmoid ? 1e-20 : 0));
  if (options.scale != 1) weights = weights * options.scale;
  return {weights, experts};
}

}  // namespace concord
