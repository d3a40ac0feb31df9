#include "core/ops/norm/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/core.h>

#include <tuple>

#include "core/ops/check.h"
#include "core/ops/cpu/norm.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::rms_norm_op {
namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

Pair forward(const Tensor& x, const Tensor& weight, double eps) {
  static const auto op = find<Pair(const Tensor&, const Tensor&, double)>("concord::rms_norm");
  return op.call(x, weight, eps);
}

Pair backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  static const auto op =
      find<Pair(const Tensor&, const Tensor&, const Tensor&, const Tensor&)>("concord::rms_norm_backward");
  return op.call(grad, x, weight, rstd);
}

Triple add_forward(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps, double multiplier) {
  static const auto op =
      find<Triple(const Tensor&, const Tensor&, const Tensor&, double, double)>("concord::add_rms_norm");
  return op.call(x, branch, weight, eps, multiplier);
}

Pair add_backward(const Tensor& more, const Tensor& grad, const Tensor& sum, const Tensor& weight, const Tensor& rstd) {
  static const auto op = find<Pair(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&)>(
      "concord::add_rms_norm_backward");
  return op.call(more, grad, sum, weight, rstd);
}

// -------------------------------------------------------------------------------------------------------- reference

Pair reference(const Tensor& x, const Tensor& weight, double eps) {
  const auto type = sum_type(x.scalar_type());
  const Tensor wide = x.to(type);
  const Tensor rstd = ((wide * wide).mean(-1, /*keepdim=*/true) + eps).rsqrt();
  return {(wide * rstd * weight.to(type)).to(x.scalar_type()), rstd.squeeze(-1)};
}

// With h = x * rstd and g = grad * weight: dx = rstd * (g - h * mean(g h)), dweight = sum over rows of grad * h.
// Returns dx in the accumulation type.
Pair wide_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  const auto type = sum_type(x.scalar_type());
  const Tensor scale = rstd.unsqueeze(-1);
  const Tensor h = x.to(type) * scale;
  const Tensor wide = grad.to(type);
  const Tensor g = wide * weight.to(type);
  const Tensor dx = scale * (g - h * (g * h).mean(-1, true));
  return {dx, (wide * h).reshape({-1, x.size(-1)}).sum(0).to(weight.scalar_type())};
}

Pair reference_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  const auto [dx, dweight] = wide_backward(grad, x, weight, rstd);
  return {dx.to(x.scalar_type()), dweight};
}

// The norm is that of the rounded sum, so that fusing is bitwise neutral. Used on the host too: the loops of the norm
// are those of rms_norm.
Triple reference_add(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps, double multiplier) {
  const Tensor sum = x.add(branch, multiplier);
  const auto [y, rstd] = forward(sum, weight, eps);
  return {sum, y, rstd};
}

Pair reference_add_backward(const Tensor& more, const Tensor& grad, const Tensor& sum, const Tensor& weight,
                            const Tensor& rstd) {
  const auto [dx, dweight] = wide_backward(grad, sum, weight, rstd);
  return {(dx + more).to(sum.scalar_type()), dweight};
}

// -------------------------------------------------------------------------------------------------------------- cpu

NormRows rows_of(const Tensor& x) { return {x.numel() / x.size(-1), x.size(-1)}; }

Pair cpu(const Tensor& x, const Tensor& weight, double eps) {
  if (!has_loops(x.scalar_type())) return reference(x, weight, eps);
  const Tensor dense = x.contiguous();
  const Tensor scale = weight.contiguous();
  const Tensor y = at::empty_like(dense);
  const Tensor rstd = at::empty(x.sizes().slice(0, x.sizes().size() - 1), x.options().dtype(sum_type(x.scalar_type())));
  visit_type("rms_norm", x.scalar_type(), [&]<class T>(T) {
    norm_forward<T>(rows_of(dense), dense.const_data_ptr<T>(), scale.const_data_ptr<T>(), nullptr, eps,
                    y.mutable_data_ptr<T>(), nullptr, rstd.mutable_data_ptr<Sum<T>>());
  });
  return {y, rstd};
}

// |more| may be undefined.
Pair loops_backward(const Tensor& more, const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  const Tensor dense = x.contiguous();
  const Tensor added = more.defined() ? more.contiguous() : Tensor();
  const Tensor g = grad.contiguous();
  const Tensor scale = weight.contiguous();
  const Tensor r = rstd.contiguous();
  const Tensor dx = at::empty_like(dense);
  const Tensor dweight = at::empty_like(scale);
  visit_type("rms_norm", x.scalar_type(), [&]<class T>(T) {
    norm_backward<T>(rows_of(dense), g.const_data_ptr<T>(), dense.const_data_ptr<T>(), scale.const_data_ptr<T>(),
                     nullptr, r.const_data_ptr<Sum<T>>(), added.defined() ? added.const_data_ptr<T>() : nullptr,
                     dx.mutable_data_ptr<T>(), dweight.mutable_data_ptr<T>(), nullptr);
  });
  return {dx, dweight};
}

Pair cpu_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  return has_loops(x.scalar_type()) ? loops_backward({}, grad, x, weight, rstd)
                                    : reference_backward(grad, x, weight, rstd);
}

Pair cpu_add_backward(const Tensor& more, const Tensor& grad, const Tensor& sum, const Tensor& weight,
                      const Tensor& rstd) {
  return has_loops(sum.scalar_type()) ? loops_backward(more, grad, sum, weight, rstd)
                                      : reference_add_backward(more, grad, sum, weight, rstd);
}

// ------------------------------------------------------------------------------------------------------- derivative

Pair autograd(const Tensor& x, const Tensor& weight, double eps) {
  Tensor statistics;
  const auto run = [&] {
    const auto [y, rstd] = forward(x, weight, eps);
    statistics = rstd;
    return Forward{y, {x, weight, rstd}};
  };
  const Tensor y = differentiable("rms_norm", {x, weight}, run, [](const Backward& b) {
    const auto [dx, dweight] = backward(b.grad, b.saved[0], b.saved[1], b.saved[2]);
    return Tensors{dx, dweight};
  });
  return {y, statistics};
}

// d sum = more + the gradient of the norm; the branch's gradient is that times the multiplier.
Triple add_autograd(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps, double multiplier) {
  Tensor statistics;
  const auto run = [&] {
    const auto [sum, y, rstd] = add_forward(x, branch, weight, eps, multiplier);
    statistics = rstd;
    return ForwardOfSeveral{{sum, y}, {sum, weight, rstd}};
  };
  const Tensors made =
      differentiable("add_rms_norm", {x, branch, weight}, run, [multiplier](const BackwardOfSeveral& b) {
        const auto [dsum, dweight] = add_backward(b.grads[0], b.grads[1], b.saved[0], b.saved[1], b.saved[2]);
        return Tensors{dsum, multiplier == 1 ? dsum : dsum * multiplier, dweight};
      });
  return {made[0], made[1], statistics};
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor y, Tensor rstd)");
  m.def("rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor rstd) -> (Tensor dx, Tensor dweight)");
  m.def(
      "add_rms_norm(Tensor x, Tensor branch, Tensor weight, float eps, float multiplier) -> (Tensor sum, Tensor y, "
      "Tensor rstd)");
  m.def(
      "add_rms_norm_backward(Tensor more, Tensor grad, Tensor sum, Tensor weight, Tensor rstd) -> (Tensor dsum, Tensor "
      "dweight)");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("rms_norm", reference);
  m.impl("rms_norm_backward", reference_backward);
  m.impl("add_rms_norm", reference_add);
  m.impl("add_rms_norm_backward", reference_add_backward);
}
TORCH_LIBRARY_IMPL(concord, CPU, m) {
  m.impl("rms_norm", cpu);
  m.impl("rms_norm_backward", cpu_backward);
  m.impl("add_rms_norm_backward", cpu_add_backward);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) {
  m.impl("rms_norm", autograd);
  m.impl("add_rms_norm", add_autograd);
}

void check(const char* name, const Tensor& x, const Tensor& weight) {
  check_floating(name, "x", x);
  check_like(name, "weight", weight, x);
  if (x.dim() >= 1 && weight.dim() == 1 && x.size(-1) == weight.size(0) && x.size(-1) > 0) return;
  refuse(name, fmt::format("x is {} and weight {}; the weight must have the size of the last dimension of x",
                           text_of(x), text_of(weight)));
}

}  // namespace
}  // namespace ops::rms_norm_op

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  ops::rms_norm_op::check("rms_norm", x, weight);
  return std::get<0>(ops::rms_norm_op::forward(x, weight, eps));
}

NormedSum add_rms_norm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight, double eps,
                       double multiplier) {
  ops::rms_norm_op::check("add_rms_norm", x, weight);
  ops::check_like("add_rms_norm", "branch", branch, x);
  if (branch.sizes() != x.sizes()) {
    ops::refuse("add_rms_norm", fmt::format("x is {} and the branch {}; they must have the same sizes", ops::text_of(x),
                                            ops::text_of(branch)));
  }
  const auto [sum, normed, rstd] = ops::rms_norm_op::add_forward(x, branch, weight, eps, multiplier);
  return {sum, normed};
}

at::Tensor rms_norm_plus_one(const at::Tensor& x, const at::Tensor& weight, double eps) {
  ops::check_floating("rms_norm", "x", x);
  const auto wide = ops::sum_type(x.scalar_type());
  return rms_norm(x.to(wide), weight.to(wide) + 1, eps).to(x.scalar_type());
}

}  // namespace concord
