#include "core/ops/gated_activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh_backward.h>
#include <fmt/core.h>

#include "core/ops/check.h"
#include "core/ops/derivative.h"
#include "core/ops/swiglu.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::gated_activation_op {
namespace {

using at::Tensor;

constexpr const char* kTanh = "tanh";

struct Halves {
  explicit Halves(const Tensor& both) {
    const Tensor wide = both.to(sum_type(both.scalar_type()));
    gate = wide.narrow(-1, 0, both.size(-1) / 2);
    up = wide.narrow(-1, both.size(-1) / 2, both.size(-1) / 2);
  }
  Tensor gate, up;
};

Tensor gelu_gated(const Tensor& both) {
  const auto run = [&] {
    const Halves half(both);
    return Forward{at::gelu(half.gate, kTanh).mul_(half.up).to(both.scalar_type()), {both}};
  };
  return differentiable("gated_activation", {both}, run, [](const Backward& b) {
    const Halves half(b.saved[0]);
    const Tensor grad = b.grad.to(half.gate.scalar_type());
    const Tensor dgate = at::gelu_backward(grad * half.up, half.gate, kTanh);
    return Tensors{at::cat({dgate, at::gelu(half.gate, kTanh).mul_(grad)}, -1).to(b.grad.scalar_type())};
  });
}

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
    // Nothing passes where a clamp holds; at the limit itself it passes, as libtorch has it.
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
  if (activation.kind == Kind::gelu_tanh) return ops::gated_activation_op::gelu_gated(gate_up);
  return ops::gated_activation_op::clamped_gated(gate_up, activation.alpha, activation.limit);
}

at::Tensor soft_cap(const at::Tensor& x, double cap) {
  const auto run = [&] { return ops::Forward{x.div(cap).tanh_().mul_(cap), {x}}; };
  return ops::differentiable("soft_cap", {x}, run, [cap](const ops::Backward& b) {
    return ops::Tensors{at::tanh_backward(b.grad, b.saved[0].div(cap).tanh_())};
  });
}

}  // namespace concord
