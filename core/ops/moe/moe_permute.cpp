#include "core/ops/moe/moe_permute.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sort.h>
#include <fmt/core.h>

#include <optional>
#include <tuple>

#include "core/ops/check.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::moe_permute_op {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

using Order = std::tuple<Tensor, Tensor, Tensor>;

Order order_of(const Tensor& experts, int64_t count) {
  static const auto op = find<Order(const Tensor&, int64_t)>("concord::moe_order");
  return op.call(experts, count);
}

Tensor permute(const Tensor& x, const Tensor& order, const Tensor& inverse) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&, const Tensor&)>("concord::moe_permute");
  return op.call(x, order, inverse);
}

Tensor combine(const Tensor& rows, const MaybeTensor& weights, const Tensor& order, const Tensor& inverse, int64_t k) {
  static const auto op =
      find<Tensor(const Tensor&, const MaybeTensor&, const Tensor&, const Tensor&, int64_t)>("concord::moe_combine");
  return op.call(rows, weights, order, inverse, k);
}

std::tuple<Tensor, Tensor> combine_backward(const Tensor& grad, const Tensor& rows, const Tensor& weights,
                                            const Tensor& order, const Tensor& inverse) {
  static const auto op =
      find<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&)>(
          "concord::moe_combine_backward");
  return op.call(grad, rows, weights, order, inverse);
}

// Returns the token of each row, sorted by expert.
Tensor tokens_of(const Tensor& order, int64_t k) { return order.div(k, "floor"); }

// -------------------------------------------------------------------------------------------------------- reference

Order reference_order(const Tensor& experts, int64_t count) {
  const auto [sorted, order] = experts.reshape({-1}).sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const Tensor numbers = at::arange(order.size(0), order.options());
  const Tensor inverse = at::empty_like(order).index_copy_(0, order, numbers);
  // Counts the rows of this expert and the previous ones by comparing all with all, which every device supports.
  const Tensor ends = sorted.unsqueeze(1).le(at::arange(count, order.options())).sum(0);
  return {order, inverse, ends};
}

Tensor reference_permute(const Tensor& x, const Tensor& order, const Tensor&) {
  if (x.size(0) == 0) return x;
  return x.index_select(0, tokens_of(order, order.size(0) / x.size(0)));
}

// Adds one choice after the other: a fixed order of the sum, and no fp32 tensor of all rows.
Tensor reference_combine(const Tensor& rows, const MaybeTensor& weights, const Tensor&, const Tensor& inverse,
                         int64_t k) {
  const auto wide = sum_type(rows.scalar_type());
  const Tensor places = inverse.view({-1, k});
  Tensor sum;
  for (int64_t j = 0; j < k; ++j) {
    Tensor part = rows.index_select(0, places.select(1, j)).to(wide);
    if (weights) part = part * weights->narrow(1, j, 1).to(wide);
    sum = sum.defined() ? sum + part : part;
  }
  return sum.to(rows.scalar_type());
}

std::tuple<Tensor, Tensor> reference_combine_backward(const Tensor& grad, const Tensor& rows, const Tensor& weights,
                                                      const Tensor& order, const Tensor& inverse) {
  const auto wide = sum_type(rows.scalar_type());
  const Tensor back = grad.index_select(0, tokens_of(order, weights.size(1))).to(wide);  // [rows, h]
  const Tensor factors = weights.reshape({-1, 1}).index_select(0, order).to(wide);
  const Tensor dots = (back * rows.to(wide)).sum(1);
  return {(back * factors).to(rows.scalar_type()),
          dots.index_select(0, inverse).view(weights.sizes()).to(weights.scalar_type())};
}

// ------------------------------------------------------------------------------------------------------- derivative

Tensor autograd_permute(const Tensor& x, const Tensor& order, const Tensor& inverse) {
  const auto run = [&] { return Forward{permute(x, order, inverse), {order, inverse}}; };
  const int64_t k = x.size(0) == 0 ? 1 : order.size(0) / x.size(0);
  return differentiable("moe_permute", {x, Tensor(), Tensor()}, run, [k](const Backward& b) {
    return Tensors{combine(b.grad, std::nullopt, b.saved[0], b.saved[1], k), Tensor(), Tensor()};
  });
}

Tensor autograd_combine(const Tensor& rows, const MaybeTensor& weights, const Tensor& order, const Tensor& inverse,
                        int64_t k) {
  const Tensor factors = weights.value_or(Tensor());
  const auto run = [&] { return Forward{combine(rows, weights, order, inverse, k), {rows, factors, order, inverse}}; };
  return differentiable("moe_combine", {rows, factors}, run, [](const Backward& b) {
    if (!b.saved[1].defined()) return Tensors{permute(b.grad, b.saved[2], b.saved[3]), Tensor()};
    auto [of_rows, of_weights] = combine_backward(b.grad, b.saved[0], b.saved[1], b.saved[2], b.saved[3]);
    return Tensors{of_rows, of_weights};
  });
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("moe_order(Tensor experts, int count) -> (Tensor, Tensor, Tensor)");
  m.def("moe_permute(Tensor x, Tensor order, Tensor inverse) -> Tensor");
  m.def("moe_combine(Tensor rows, Tensor? weights, Tensor order, Tensor inverse, int k) -> Tensor");
  m.def(
      "moe_combine_backward(Tensor grad, Tensor rows, Tensor weights, Tensor order, Tensor inverse) -> (Tensor, "
      "Tensor)");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("moe_order", reference_order);
  m.impl("moe_permute", reference_permute);
  m.impl("moe_combine", reference_combine);
  m.impl("moe_combine_backward", reference_combine_backward);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) {
  m.impl("moe_permute", autograd_permute);
  m.impl("moe_combine", autograd_combine);
}

}  // namespace
}  // namespace ops::moe_permute_op

ExpertOrder order_by_expert(const at::Tensor& experts, int64_t count) {
  if (!experts.defined() || experts.dim() != 2 || experts.scalar_type() != at::kLong) {
    ops::refuse("order_by_expert", fmt::format("experts is {}; must be Long [tokens, k]", ops::text_of(experts)));
  }
  auto [order, inverse, ends] = ops::moe_permute_op::order_of(experts, count);
  return {order, inverse, ends};
}

at::Tensor moe_permute(const at::Tensor& x, const ExpertOrder& order) {
  ops::check_floating("moe_permute", "x", x);
  const int64_t rows = order.order.size(0);
  if (x.dim() != 2 || (x.size(0) == 0 ? rows != 0 : rows % x.size(0) != 0)) {
    ops::refuse("moe_permute", fmt::format("x is {} for an order of {} rows; must be [tokens, h], and the rows a "
                                           "multiple of the tokens",
                                           ops::text_of(x), rows));
  }
  return ops::moe_permute_op::permute(x, order.order, order.inverse);
}

at::Tensor moe_combine(const at::Tensor& rows, const at::Tensor& weights, const ExpertOrder& order) {
  ops::check_floating("moe_combine", "rows", rows);
  ops::check_floating("moe_combine", "weights", weights);
  if (rows.dim() != 2 || weights.dim() != 2 || weights.size(1) < 1 || rows.size(0) != weights.numel() ||
      rows.size(0) != order.order.size(0)) {
    ops::refuse("moe_combine",
                fmt::format("rows is {}, weights {}, for an order of {} rows; must be [tokens * k, h] and [tokens, k]",
                            ops::text_of(rows), ops::text_of(weights), order.order.size(0)));
  }
  return ops::moe_permute_op::combine(rows, weights, order.order, order.inverse, weights.size(1));
}

}  // namespace concord
