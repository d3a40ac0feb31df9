#include "core/ops/gated_activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh_backward.h>
#include <fmt/core.h>

#include "core/ops/check.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/swiglu.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::gated_activation_op {
namespace {

using at::Tensor;

// Gelu in its tanh form, x (1 + tanh(root (x + cubic x^3))) / 2, and its slope. Written out, since libtorch's gelu
// takes the form as an argument, which some vendors' kernels ignore.
struct TanhGelu {
  explicit TanhGelu(const Tensor& x) : square(x * x), bent((x * (square * kCubic + 1) * kRoot).tanh_()) {
    value = x * (bent + 1) * 0.5;
  }
  Tensor slope(const Tensor& x) const {
    return (bent + 1 + x * (1 - bent * bent) * (square * (3 * kCubic) + 1) * kRoot) * 0.5;
  }
  static constexpr double kRoot = 0.79788456080286535588;  // sqrt(2 / pi)
  static constexpr double kCubic = 0.044715;
  Tensor square, bent, value;
};

struct Halves {
  explicit Halves(const Tensor& both) {
    const Tensor wide = both.to(sum_type(both.scalar_type()));
    gate = wide.narrow(-1, 0, both.size(-1) / 2);
    up = wide.narrow(-1, both.size(-1) / 2, both.size(-1) / 2);
  }
  Tensor gate, up;
};

Tensor geglu(const Tensor& gate_up) {
  static const auto op = find<Tensor(const Tensor&)>("concord::geglu");
  return op.call(gate_up);
}

Tensor geglu_backward(const Tensor& grad, const Tensor& gate_up) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&)>("concord::geglu_backward");
  return op.call(grad, gate_up);
}

Tensor reference_geglu(const Tensor& gate_up) {
  const Halves half(gate_up);
  return TanhGelu(half.gate).value.mul_(half.up).to(gate_up.scalar_type());
}

Tensor reference_geglu_backward(const Tensor& grad, const Tensor& gate_up) {
  const Halves half(gate_up);
  const Tensor wide = grad.to(half.gate.scalar_type());
  const TanhGelu gelu(half.gate);
  return at::cat({wide * half.up * gelu.slope(half.gate), wide * gelu.value}, -1).to(gate_up.scalar_type());
}

Tensor autograd_geglu(const Tensor& gate_up) {
  const auto run = [&] { return Forward{geglu(gate_up), {gate_up}}; };
  return differentiable("gated_activation", {gate_up}, run,
                        [](const Backward& b) { return Tensors{geglu_backward(b.grad, b.saved[0])}; });
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("geglu(Tensor gate_up) -> Tensor");
  m.def("geglu_backward(Tensor grad, Tensor gate_up) -> Tensor");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("geglu", reference_geglu);
  m.impl("geglu_backward", reference_geglu_backward);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("geglu", autograd_geglu); }

struct Alternating {
  Alternating(const Tensor& both, double limit) {
    const Tensor pairs = both.to(sum_type(both.scalar_type())).unflatten(-1, {-1, 2});
    given_gate = pairs.select(-1, 0);
    given_up = pairs.select(-1, 1);
    gate = given_gate.clamp_max(limit);
    up = given_up.clamp(-limit, limit);
  }
  Tensor given_gate, given_up;
  Tensor gate, up;  // clamped
};

Tensor clamped_gated(const Tensor& both, double alpha, double limit) {
  const auto run = [&] {
    const Alternating x(both, limit);
    return Forward{((x.up + 1) * x.gate * (x.gate * alpha).sigmoid()).to(both.scalar_type()), {both}};
  };
  return differentiable("gated_activation", {both}, run, [alpha, limit](const Backward& b) {
    const Alternating x(b.saved[0], limit);
    const Tensor grad = b.grad.to(x.gate.scalar_type()), s = (x.gate * alpha).sigmoid();
    // The gradient is 0 beyond a clamp; at the limit itself it passes, as in libtorch.
    const Tensor dgate = grad * (x.up + 1) * (s + x.gate * alpha * s * (1 - s)) * (x.given_gate <= limit);
    const Tensor dup = grad * x.gate * s * (x.given_up.abs() <= limit);
    return Tensors{at::stack({dgate, dup}, -1).flatten(-2).to(b.grad.scalar_type())};
  });
}

}  // namespace
}  // namespace ops::gated_activation_op

at::Tensor gated_activation(const at::Tensor& gate_up, const GatedActivation& activation) {
  using Kind = GatedActivation::Kind;
  if (activation.kind == Kind::silu) return swiglu(gate_up);
  ops::check_floating("gated_activation", "gate_up", gate_up);
  if (gate_up.dim() < 1 || gate_up.size(-1) % 2 != 0) {
    ops::refuse("gated_activation", fmt::format("gate_up is {}; its last dimension holds gate and up, so it must be "
                                                "even",
                                                ops::text_of(gate_up)));
  }
  if (activation.kind == Kind::gelu_tanh) return ops::gated_activation_op::geglu(gate_up);
  return ops::gated_activation_op::clamped_gated(gate_up, activation.alpha, activation.limit);
}

at::Tensor soft_cap(const at::Tensor& x, double cap) {
  const auto run = [&] { return ops::Forward{x.div(cap).tanh_().mul_(cap), {x}}; };
  return ops::differentiable("soft_cap", {x}, run, [cap](const ops::Backward& b) {
    return ops::Tensors{at::tanh_backward(b.grad, b.saved[0].div(cap).tanh_())};
  });
}

}  // namespace concord
