#include "core/ops/rms_norm.h"

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

Pair forward(const Tensor& x, const Tensor& weight, double eps) {
  static const auto op = find<Pair(const Tensor&, const Tensor&, double)>("concord::rms_norm");
  return op.call(x, weight, eps);
}

Pair backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  static const auto op =
      find<Pair(const Tensor&, const Tensor&, const Tensor&, const Tensor&)>("concord::rms_norm_backward");
  return op.call(grad, x, weight, rstd);
}

// -------------------------------------------------------------------------------------------------------- reference

Pair reference(const Tensor& x, const Tensor& weight, double eps) {
  const auto type = sum_type(x.scalar_type());
  const Tensor wide = x.to(type);
  const Tensor rstd = ((wide * wide).mean(-1, /*keepdim=*/true) + eps).rsqrt();
  return {(wide * rstd * weight.to(type)).to(x.scalar_type()), rstd.squeeze(-1)};
}

// With h = x * rstd and g = grad * weight: dx = rstd * (g - h * mean(g h)), dweight = sum over rows of grad * h.
Pair reference_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  const auto type = sum_type(x.scalar_type());
  const Tensor scale = rstd.unsqueeze(-1);
  const Tensor h = x.to(type) * scale;
  const Tensor wide = grad.to(type);
  const Tensor g = wide * weight.to(type);
  const Tensor dx = scale * (g - h * (g * h).mean(-1, true));
  return {dx.to(x.scalar_type()), (wide * h).reshape({-1, x.size(-1)}).sum(0).to(weight.scalar_type())};
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

Pair cpu_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  if (!has_loops(x.scalar_type())) return reference_backward(grad, x, weight, rstd);
  const Tensor dense = x.contiguous();
  const Tensor g = grad.contiguous();
  const Tensor scale = weight.contiguous();
  const Tensor r = rstd.contiguous();
  const Tensor dx = at::empty_like(dense);
  const Tensor dweight = at::empty_like(scale);
  visit_type("rms_norm", x.scalar_type(), [&]<class T>(T) {
    norm_backward<T>(rows_of(dense), g.const_data_ptr<T>(), dense.const_data_ptr<T>(), scale.const_data_ptr<T>(),
                     nullptr, r.const_data_ptr<Sum<T>>(), dx.mutable_data_ptr<T>(), dweight.mutable_data_ptr<T>(),
                     nullptr);
  });
  return {dx, dweight};
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

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor y, Tensor rstd)");
  m.def("rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor rstd) -> (Tensor dx, Tensor dweight)");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("rms_norm", reference);
  m.impl("rms_norm_backward", reference_backward);
}
TORCH_LIBRARY_IMPL(concord, CPU, m) {
  m.impl("rms_norm", cpu);
  m.impl("rms_norm_backward", cpu_backward);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("rms_norm", autograd); }

}  // namespace
}  // namespace ops::rms_norm_op

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  ops::check_floating("rms_norm", "x", x);
  ops::check_like("rms_norm", "weight", weight, x);
  if (x.dim() < 1 || weight.dim() != 1 || x.size(-1) != weight.size(0) || x.size(-1) == 0) {
    ops::refuse("rms_norm",
                fmt::format("x is {} and weight {}; the weight must have the size of the last dimension of x",
                            ops::text_of(x), ops::text_of(weight)));
  }
  return std::get<0>(ops::rms_norm_op::forward(x, weight, eps));
}

}  // namespace concord
