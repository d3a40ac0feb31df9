#include "core/ops/swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/core.h>

#include "core/ops/check.h"
#include "core/ops/cpu/swiglu.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::swiglu_op {
namespace {

using at::Tensor;

Tensor forward(const Tensor& gate_up) {
  static const auto op = find<Tensor(const Tensor&)>("concord::swiglu");
  return op.call(gate_up);
}

Tensor backward(const Tensor& grad, const Tensor& gate_up) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&)>("concord::swiglu_backward");
  return op.call(grad, gate_up);
}

// -------------------------------------------------------------------------------------------------------- reference

struct Halves {
  explicit Halves(const Tensor& both) {
    const auto wide = both.to(sum_type(both.scalar_type()));
    const int64_t width = both.size(-1) / 2;
    gate = wide.narrow(-1, 0, width);
    up = wide.narrow(-1, width, width);
  }
  Tensor gate;
  Tensor up;
};

Tensor reference(const Tensor& gate_up) {
  const Halves half(gate_up);
  return (half.gate * half.gate.sigmoid() * half.up).to(gate_up.scalar_type());
}

Tensor reference_backward(const Tensor& grad, const Tensor& gate_up) {
  const Halves half(gate_up);
  const Tensor s = half.gate.sigmoid();
  const Tensor wide = grad.to(s.scalar_type());
  const Tensor dgate = wide * half.up * (s + half.gate * s * (1 - s));
  return at::cat({dgate, wide * half.gate * s}, -1).to(gate_up.scalar_type());
}

// -------------------------------------------------------------------------------------------------------------- cpu

int64_t rows_of(const Tensor& gate_up) { return gate_up.size(-1) == 0 ? 0 : gate_up.numel() / gate_up.size(-1); }

Tensor cpu(const Tensor& gate_up) {
  if (!has_loops(gate_up.scalar_type())) return reference(gate_up);
  const Tensor dense = gate_up.contiguous();
  auto sizes = dense.sizes().vec();
  sizes.back() /= 2;
  const Tensor y = at::empty(sizes, dense.options());
  visit_type("swiglu", dense.scalar_type(), [&]<class T>(T) {
    swiglu_forward<T>(rows_of(dense), sizes.back(), dense.const_data_ptr<T>(), y.mutable_data_ptr<T>());
  });
  return y;
}

Tensor cpu_backward(const Tensor& grad, const Tensor& gate_up) {
  if (!has_loops(gate_up.scalar_type())) return reference_backward(grad, gate_up);
  const Tensor dense = gate_up.contiguous();
  const Tensor g = grad.contiguous();
  const Tensor result = at::empty_like(dense);
  visit_type("swiglu", dense.scalar_type(), [&]<class T>(T) {
    swiglu_backward<T>(rows_of(dense), dense.size(-1) / 2, g.const_data_ptr<T>(), dense.const_data_ptr<T>(),
                       result.mutable_data_ptr<T>());
  });
  return result;
}

// ------------------------------------------------------------------------------------------------------- derivative

Tensor autograd(const Tensor& gate_up) {
  const auto run = [&] { return Forward{forward(gate_up), {gate_up}}; };
  return differentiable("swiglu", {gate_up}, run,
                        [](const Backward& b) { return Tensors{backward(b.grad, b.saved[0])}; });
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("swiglu(Tensor gate_up) -> Tensor");
  m.def("swiglu_backward(Tensor grad, Tensor gate_up) -> Tensor");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("swiglu", reference);
  m.impl("swiglu_backward", reference_backward);
}
TORCH_LIBRARY_IMPL(concord, CPU, m) {
  m.impl("swiglu", cpu);
  m.impl("swiglu_backward", cpu_backward);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("swiglu", autograd); }

}  // namespace
}  // namespace ops::swiglu_op

at::Tensor swiglu(const at::Tensor& gate_up) {
  ops::check_floating("swiglu", "gate_up", gate_up);
  if (gate_up.dim() < 1 || gate_up.size(-1) % 2 != 0) {
    ops::refuse("swiglu", fmt::format("gate_up is {}; its last dimension holds gate and up, so it must be even",
                                      ops::text_of(gate_up)));
  }
  return ops::swiglu_op::forward(gate_up);
}

}  // namespace concord
