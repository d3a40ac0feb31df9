#include "core/ops/norm/layer_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/core.h>

#include <optional>
#include <tuple>

#include "core/ops/check.h"
#include "core/ops/cpu/norm.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::layer_norm_op {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

Triple forward(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, double eps) {
  static const auto op = find<Triple(const Tensor&, const Tensor&, const MaybeTensor&, double)>("concord::layer_norm");
  return op.call(x, weight, bias, eps);
}

Triple backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd) {
  static const auto op = find<Triple(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&)>(
      "concord::layer_norm_backward");
  return op.call(grad, x, weight, mean, rstd);
}

// -------------------------------------------------------------------------------------------------------- reference

Triple reference(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, double eps) {
  const auto type = sum_type(x.scalar_type());
  const Tensor wide = x.to(type);
  const Tensor mean = wide.mean(-1, /*keepdim=*/true);
  const Tensor centred = wide - mean;
  const Tensor rstd = ((centred * centred).mean(-1, true) + eps).rsqrt();
  Tensor y = centred * rstd * weight.to(type);
  if (bias && bias->defined()) y = y + bias->to(type);
  return {y.to(x.scalar_type()), mean.squeeze(-1), rstd.squeeze(-1)};
}

// With h = (x - mean) * rstd and g = grad * weight: dx = rstd * (g - mean(g) - h * mean(g h)).
Triple reference_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& mean,
                          const Tensor& rstd) {
  const auto type = sum_type(x.scalar_type());
  const Tensor scale = rstd.unsqueeze(-1);
  const Tensor h = (x.to(type) - mean.unsqueeze(-1)) * scale;
  const Tensor wide = grad.to(type);
  const Tensor g = wide * weight.to(type);
  const Tensor dx = scale * (g - g.mean(-1, true) - h * (g * h).mean(-1, true));
  const auto over_rows = [&](const Tensor& t) { return t.reshape({-1, x.size(-1)}).sum(0).to(weight.scalar_type()); };
  return {dx.to(x.scalar_type()), over_rows(wide * h), over_rows(wide)};
}

// -------------------------------------------------------------------------------------------------------------- cpu

NormRows rows_of(const Tensor& x) { return {x.numel() / x.size(-1), x.size(-1)}; }

Triple cpu(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, double eps) {
  if (!has_loops(x.scalar_type())) return reference(x, weight, bias, eps);
  const Tensor dense = x.contiguous();
  const Tensor scale = weight.contiguous();
  const Tensor shift = bias && bias->defined() ? bias->contiguous() : Tensor();
  const Tensor y = at::empty_like(dense);
  const Tensor mean = at::empty(x.sizes().slice(0, x.sizes().size() - 1), x.options().dtype(sum_type(x.scalar_type())));
  const Tensor rstd = at::empty_like(mean);
  visit_type("layer_norm", x.scalar_type(), [&]<class T>(T) {
    norm_forward<T>(rows_of(dense), dense.const_data_ptr<T>(), scale.const_data_ptr<T>(),
                    shift.defined() ? shift.const_data_ptr<T>() : nullptr, eps, y.mutable_data_ptr<T>(),
                    mean.mutable_data_ptr<Sum<T>>(), rstd.mutable_data_ptr<Sum<T>>());
  });
  return {y, mean, rstd};
}

Triple cpu_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd) {
  if (!has_loops(x.scalar_type())) return reference_backward(grad, x, weight, mean, rstd);
  const Tensor dense = x.contiguous();
  const Tensor g = grad.contiguous();
  const Tensor scale = weight.contiguous();
  const Tensor m = mean.contiguous();
  const Tensor r = rstd.contiguous();
  const Tensor dx = at::empty_like(dense);
  const Tensor dweight = at::empty_like(scale);
  const Tensor dbias = at::empty_like(scale);
  visit_type("layer_norm", x.scalar_type(), [&]<class T>(T) {
    norm_backward<T>(rows_of(dense), g.const_data_ptr<T>(), dense.const_data_ptr<T>(), scale.const_data_ptr<T>(),
                     m.const_data_ptr<Sum<T>>(), r.const_data_ptr<Sum<T>>(), nullptr, dx.mutable_data_ptr<T>(),
                     dweight.mutable_data_ptr<T>(), dbias.mutable_data_ptr<T>());
  });
  return {dx, dweight, dbias};
}

// ------------------------------------------------------------------------------------------------------- derivative

Triple autograd(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, double eps) {
  Tensor means, rstds;
  const auto run = [&] {
    const auto [y, mean, rstd] = forward(x, weight, bias, eps);
    means = mean;
    rstds = rstd;
    return Forward{y, {x, weight, mean, rstd}};
  };
  const Tensor y = differentiable("layer_norm", {x, weight, bias.value_or(Tensor())}, run, [](const Backward& b) {
    const auto [dx, dweight, dbias] = backward(b.grad, b.saved[0], b.saved[1], b.saved[2], b.saved[3]);
    return Tensors{dx, dweight, b.needed[2] ? dbias : Tensor()};
  });
  return {y, means, rstds};
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("layer_norm(Tensor x, Tensor weight, Tensor? bias, float eps) -> (Tensor y, Tensor mean, Tensor rstd)");
  m.def(
      "layer_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor mean, Tensor rstd) -> "
      "(Tensor dx, Tensor dweight, Tensor dbias)");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("layer_norm", reference);
  m.impl("layer_norm_backward", reference_backward);
}
TORCH_LIBRARY_IMPL(concord, CPU, m) {
  m.impl("layer_norm", cpu);
  m.impl("layer_norm_backward", cpu_backward);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("layer_norm", autograd); }

}  // namespace
}  // namespace ops::layer_norm_op

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  ops::check_floating("layer_norm", "x", x);
  ops::check_like("layer_norm", "weight", weight, x);
  if (bias.defined()) ops::check_like("layer_norm", "bias", bias, x);
  const bool fits = x.dim() >= 1 && weight.dim() == 1 && x.size(-1) == weight.size(0) && x.size(-1) > 0;
  if (!fits || (bias.defined() && bias.sizes() != weight.sizes())) {
    ops::refuse(
        "layer_norm",
        fmt::format("x is {}, weight {} and bias {}; weight and bias must have the size of the last dimension of x",
                    ops::text_of(x), ops::text_of(weight), ops::text_of(bias)));
  }
  return std::get<0>(ops::layer_norm_op::forward(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, eps));
}

}  // namespace concord
