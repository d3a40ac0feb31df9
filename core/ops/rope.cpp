#include "core/ops/rope.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include "core/ops/check.h"
#include "core/ops/cpu/rope.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::rope_op {
namespace {

using at::Tensor;

// Shapes in names: o, i the dimensions before the heads (outer, inner), q heads, n the size of a head, r its angles.

Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&, const Tensor&, bool)>("concord::rope");
  return op.call(x, cos, sin, back);
}

// -------------------------------------------------------------------------------------------------------- reference

Tensor reference(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  const int64_t half = cos.size(-1);
  const auto type = sum_type(x.scalar_type());
  const Tensor a = x.narrow(-1, 0, half).to(type);
  const Tensor b = x.narrow(-1, half, half).to(type);
  const Tensor c = cos.unsqueeze(-2);
  const Tensor s = back ? -sin.unsqueeze(-2) : sin.unsqueeze(-2);
  const Tensor rest = x.narrow(-1, 2 * half, x.size(-1) - 2 * half);
  return at::cat({(a * c - b * s).to(x.scalar_type()), (b * c + a * s).to(x.scalar_type()), rest}, -1);
}

// -------------------------------------------------------------------------------------------------------------- cpu

// |x| as oiqn: the last leading dimension is inner, the others together are outer.
Tensor as_four(const Tensor& x) {
  const int64_t inner = x.dim() > 2 ? x.size(-3) : 1;
  return x.reshape({x.numel() == 0 ? 0 : -1, inner, x.size(-2), x.size(-1)});
}

Tensor angles_of(const Tensor& angles, const Tensor& x) {
  auto sizes = x.sizes().slice(0, static_cast<size_t>(x.dim() - 2)).vec();
  const int64_t inner = sizes.empty() ? 1 : sizes.back();
  sizes.push_back(angles.size(-1));
  return angles.expand(sizes).reshape({-1, inner, angles.size(-1)});
}

Tensor cpu(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  if (!has_loops(x.scalar_type()) || x.numel() == 0) return reference(x, cos, sin, back);
  const Tensor x_oiqn = as_four(x.stride(-1) == 1 ? x : x.contiguous());
  const Tensor cos_oir = angles_of(cos.contiguous(), x);
  const Tensor sin_oir = angles_of(sin.contiguous(), x);
  const Tensor y = at::empty(x.sizes(), x.options());
  const RopeShape shape{x_oiqn.size(0),
                        x_oiqn.size(1),
                        x_oiqn.size(2),
                        x_oiqn.size(3),
                        cos.size(-1),
                        {x_oiqn.stride(0), x_oiqn.stride(1), x_oiqn.stride(2)},
                        {cos_oir.stride(0), cos_oir.stride(1)}};
  visit_type("rope", x.scalar_type(), [&]<class T>(T) {
    rope_turn<T>(shape, x_oiqn.const_data_ptr<T>(), cos_oir.const_data_ptr<Sum<T>>(), sin_oir.const_data_ptr<Sum<T>>(),
                 back, y.mutable_data_ptr<T>());
  });
  return y;
}

// ------------------------------------------------------------------------------------------------------- derivative

Tensor autograd(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  const auto run = [&] { return Forward{turn(x, cos, sin, back), {cos, sin}}; };
  return differentiable("rope", {x}, run,
                        [back](const Backward& b) { return Tensors{turn(b.grad, b.saved[0], b.saved[1], !back)}; });
}

TORCH_LIBRARY_FRAGMENT(concord, m) { m.def("rope(Tensor x, Tensor cos, Tensor sin, bool back) -> Tensor"); }
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) { m.impl("rope", reference); }
TORCH_LIBRARY_IMPL(concord, CPU, m) { m.impl("rope", cpu); }
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("rope", autograd); }

void check_angles(const Tensor& x, const Tensor& angles, const char* what) {
  const auto type = sum_type(x.scalar_type());
  if (!angles.defined() || angles.scalar_type() != type || angles.device() != x.device() || angles.dim() < 1) {
    refuse("rope",
           fmt::format("{} is {}; must be {} on {}", what, text_of(angles), c10::toString(type), x.device().str()));
  }
  auto leading = x.sizes().slice(0, static_cast<size_t>(x.dim() - 2)).vec();
  leading.push_back(angles.size(-1));
  if (2 * angles.size(-1) > x.size(-1) || !at::is_expandable_to(angles.sizes(), leading)) {
    refuse("rope", fmt::format("{} is {} for x of {}; the last dimension must be at most half the head size, and the "
                               "others must match those of x before its heads",
                               what, text_of(angles), text_of(x)));
  }
}

}  // namespace
}  // namespace ops::rope_op

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  ops::check_floating("rope", "x", x);
  if (x.dim() < 2)
    ops::refuse("rope", fmt::format("x is {}; the last two dimensions must be heads and head size", ops::text_of(x)));
  ops::rope_op::check_angles(x, cos, "cos");
  ops::rope_op::check_angles(x, sin, "sin");
  if (cos.sizes() != sin.sizes()) {
    ops::refuse("rope", fmt::format("cos is {} and sin {}", ops::text_of(cos), ops::text_of(sin)));
  }
  return ops::rope_op::turn(x, cos, sin, /*back=*/false);
}

}  // namespace concord
