#include "core/ops/attention/rope.h"

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
using Triple = std::tuple<Tensor, Tensor, Tensor>;

// Shapes in names: o, i the dimensions before the heads (outer, inner), q heads, n the size of a head, r its angles.

Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&, const Tensor&, bool)>("concord::rope");
  return op.call(x, cos, sin, back);
}

Triple turn_qkv(const Tensor& qkv, const Tensor& cos, const Tensor& sin, int64_t heads, int64_t kv_heads) {
  static const auto op =
      find<Triple(const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t)>("concord::rope_qkv");
  return op.call(qkv, cos, sin, heads, kv_heads);
}

Tensor turn_qkv_back(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos, const Tensor& sin) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&)>(
      "concord::rope_qkv_backward");
  return op.call(dq, dk, dv, cos, sin);
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

// Composed of rope, on the host too.
Triple reference_qkv(const Tensor& qkv, const Tensor& cos, const Tensor& sin, int64_t heads, int64_t kv_heads) {
  const Tensor all = qkv.unflatten(-1, {heads + 2 * kv_heads, -1});
  return {turn(all.narrow(-2, 0, heads), cos, sin, false), turn(all.narrow(-2, heads, kv_heads), cos, sin, false),
          all.narrow(-2, heads + kv_heads, kv_heads).contiguous()};  // a view would keep all of qkv until backward
}

Tensor reference_qkv_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos,
                              const Tensor& sin) {
  return at::cat({turn(dq, cos, sin, true), turn(dk, cos, sin, true), dv}, -2).flatten(-2);
}

// -------------------------------------------------------------------------------------------------------------- cpu

// Returns |x| as oiqn: the last leading dimension is inner, the others are merged into outer.
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

Triple autograd_qkv(const Tensor& qkv, const Tensor& cos, const Tensor& sin, int64_t heads, int64_t kv_heads) {
  const auto run = [&] {
    const auto [q, k, v] = turn_qkv(qkv, cos, sin, heads, kv_heads);
    return ForwardOfSeveral{{q, k, v}, {cos, sin}};
  };
  const Tensors made = differentiable("rope_qkv", {qkv}, run, [](const BackwardOfSeveral& b) {
    return Tensors{turn_qkv_back(b.grads[0], b.grads[1], b.grads[2], b.saved[0], b.saved[1])};
  });
  return {made[0], made[1], made[2]};
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("rope(Tensor x, Tensor cos, Tensor sin, bool back) -> Tensor");
  m.def("rope_qkv(Tensor qkv, Tensor cos, Tensor sin, int heads, int kv_heads) -> (Tensor q, Tensor k, Tensor v)");
  m.def("rope_qkv_backward(Tensor dq, Tensor dk, Tensor dv, Tensor cos, Tensor sin) -> Tensor");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("rope", reference);
  m.impl("rope_qkv", reference_qkv);
  m.impl("rope_qkv_backward", reference_qkv_backward);
}
TORCH_LIBRARY_IMPL(concord, CPU, m) { m.impl("rope", cpu); }
TORCH_LIBRARY_IMPL(concord, Autograd, m) {
  m.impl("rope", autograd);
  m.impl("rope_qkv", autograd_qkv);
}

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

void check_both_angles(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  check_angles(x, cos, "cos");
  check_angles(x, sin, "sin");
  if (cos.sizes() != sin.sizes()) refuse("rope", fmt::format("cos is {} and sin {}", text_of(cos), text_of(sin)));
}

}  // namespace
}  // namespace ops::rope_op

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  ops::check_floating("rope", "x", x);
  if (x.dim() < 2)
    ops::refuse("rope", fmt::format("x is {}; the last two dimensions must be heads and head size", ops::text_of(x)));
  ops::rope_op::check_both_angles(x, cos, sin);
  return ops::rope_op::turn(x, cos, sin, /*back=*/false);
}

at::Tensor rope_interleaved(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t size = 2 * cos.size(-1);
  const at::Tensor pairs = x.narrow(-1, 0, size).unflatten(-1, {-1, 2}).transpose(-1, -2).flatten(-2);
  const at::Tensor rest = x.narrow(-1, size, x.size(-1) - size);
  return rope(rest.size(-1) == 0 ? pairs : at::cat({pairs, rest}, -1), cos, sin);
}

void check_rope_qkv(const char* op, const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin, int64_t heads,
                    int64_t kv_heads) {
  ops::check_floating(op, "qkv", qkv);
  const int64_t all = heads + 2 * kv_heads;
  if (qkv.dim() < 1 || heads < 1 || kv_heads < 1 || qkv.size(-1) % all != 0) {
    ops::refuse(op, fmt::format("qkv is {}; the last dimension must be a multiple of {} query and 2 x {} key and value "
                                "heads",
                                ops::text_of(qkv), heads, kv_heads));
  }
  ops::rope_op::check_both_angles(qkv.unflatten(-1, {all, -1}), cos, sin);
}

Heads rope_qkv(const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin, int64_t heads, int64_t kv_heads) {
  check_rope_qkv("rope_qkv", qkv, cos, sin, heads, kv_heads);
  const auto [q, k, v] = ops::rope_op::turn_qkv(qkv, cos, sin, heads, kv_heads);
  return {q, k, v};
}

}  // namespace concord
