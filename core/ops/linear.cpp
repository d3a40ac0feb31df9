#include "core/ops/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/ops/check.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/precision/fp8_layer.h"
#include "core/ops/precision/narrow_gemm.h"

namespace concord {
namespace ops::linear_op {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

Tensor rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

Tensor forward(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&, const MaybeTensor&)>("concord::linear");
  return op.call(x, weight, bias);
}

Tensor input_grad(const Tensor& grad, const Tensor& weight) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&)>("concord::linear_input_grad");
  return op.call(grad, weight);
}

Tensor weight_grad(const Tensor& grad, const Tensor& x) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&)>("concord::linear_weight_grad");
  return op.call(grad, x);
}

void add_weight_grad(Tensor& main, const Tensor& grad, const Tensor& x) {
  static const auto op = find<void(Tensor&, const Tensor&, const Tensor&)>("concord::linear_weight_grad_");
  op.call(main, grad, x);
}

void set_weight_grad(Tensor& main, const Tensor& grad, const Tensor& x) {
  static const auto op = find<void(Tensor&, const Tensor&, const Tensor&)>("concord::linear_weight_grad_set_");
  op.call(main, grad, x);
}

// The host uses the references too, except on Arm: libtorch's GEMMs, which no hand-written loop would beat.
Tensor reference(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) { return at::linear(x, weight, bias); }

#if defined(__aarch64__)
// libtorch passes x W^T in fp32 to a library that first reorders all of W. With a column-major x, which is a cheap
// copy, it calls BLAS: 2 to 10 % less time for 64 to 512 rows, and up to half for few.
Tensor cpu_wide(const Tensor& x, const Tensor& weight, const MaybeTensor& bias);
Tensor cpu(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
  if (multiplies_faster_in_fp32(x)) return cpu_wide(x, weight, bias);
  constexpr int64_t kMaxRows = 512;  // no gain beyond this
  const int64_t count = x.size(-1) == 0 ? 0 : x.numel() / x.size(-1);
  if (x.scalar_type() != at::kFloat || count < 2 || count > kMaxRows) return reference(x, weight, bias);
  const Tensor by_columns = rows(x).t().contiguous().t();
  const Tensor y = bias ? at::addmm(*bias, by_columns, weight.t()) : at::mm(by_columns, weight.t());
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return y.view(sizes);
}

// Splits a weight by its outputs, to convert one part at a time: a copy of the whole would take twice its memory.
std::vector<Tensor> parts_of(const Tensor& weight) {
  constexpr int64_t kFew = 16 * 1024, kMaxPart = 4 * 1024 * 1024;  // elements
  return weight.chunk(weight.numel() <= kFew ? 1 : std::max<int64_t>(8, weight.numel() / kMaxPart), 0);
}

Tensor cpu_wide(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  const Tensor wide = x.to(at::kFloat), y = at::empty(sizes, x.options());
  int64_t first = 0;
  for (const Tensor& part : parts_of(weight)) {
    const int64_t count = part.size(0);
    const MaybeTensor added = bias ? MaybeTensor(bias->narrow(0, first, count).to(at::kFloat)) : std::nullopt;
    y.narrow(-1, first, count).copy_(cpu(wide, part.to(at::kFloat), added));
    first += count;
  }
  return y;
}
#endif

Tensor reference_input_grad(const Tensor& grad, const Tensor& weight) { return at::matmul(grad, weight); }

Tensor reference_weight_grad(const Tensor& grad, const Tensor& x) { return at::mm(rows(grad).t(), rows(x)); }

#if defined(__aarch64__)
Tensor cpu_input_grad(const Tensor& grad, const Tensor& weight) {
  if (!multiplies_faster_in_fp32(grad)) return reference_input_grad(grad, weight);
  const Tensor all = rows(grad), sum = at::zeros({all.size(0), weight.size(1)}, all.options().dtype(at::kFloat));
  int64_t first = 0;
  for (const Tensor& part : parts_of(weight)) {
    sum.addmm_(all.narrow(1, first, part.size(0)).to(at::kFloat), part.to(at::kFloat));
    first += part.size(0);
  }
  auto sizes = grad.sizes().vec();
  sizes.back() = weight.size(1);
  return sum.to(grad.scalar_type()).view(sizes);
}

Tensor cpu_weight_grad(const Tensor& grad, const Tensor& x) {
  if (!multiplies_faster_in_fp32(grad)) return reference_weight_grad(grad, x);
  return reference_weight_grad(grad.to(at::kFloat), x.to(at::kFloat)).to(grad.scalar_type());
}
#endif

// One accumulating GEMM. 16-bit operands are converted first, so that nothing is rounded in between.
void reference_add_weight_grad(Tensor& main, const Tensor& grad, const Tensor& x) {
  const auto type = main.scalar_type();
  main.addmm_(rows(grad).t().to(type), rows(x).to(type));
}

void reference_set_weight_grad(Tensor& main, const Tensor& grad, const Tensor& x) {
  const auto type = main.scalar_type();
  main.addmm_(rows(grad).t().to(type), rows(x).to(type), /*beta=*/0);  // overwrites anything, also NaN
}

// Returns the part of |x| that backward needs: undefined for a frozen weight.
Tensor input_to_keep(const Tensor& x, const Tensor& weight) { return weight.requires_grad() ? x : Tensor(); }

Tensor reference_bias_grad(const Tensor& grad) { return rows(grad).sum(0); }

// Returns the bias gradient, or undefined.
Tensor bias_grad(const Backward& b) { return b.needed[2] ? linear_bias_grad(b.grad) : Tensor(); }

Tensor autograd(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
  const auto run = [&] { return Forward{forward(x, weight, bias), {input_to_keep(x, weight), weight}}; };
  return differentiable("linear", {x, weight, bias.value_or(Tensor())}, run, [](const Backward& b) {
    return Tensors{b.needed[0] ? input_grad(b.grad, b.saved[1]) : Tensor(),
                   b.needed[1] ? weight_grad(b.grad, b.saved[0]) : Tensor(), bias_grad(b)};
  });
}

// The input gradient is computed first: with deferred weight gradients it is all that backward computes.
Tensor into_sink(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, const GradSink& sink) {
  const auto run = [&] { return Forward{forward(x, weight, bias), {input_to_keep(x, weight), weight}}; };
  return differentiable("linear", {x, weight, bias.value_or(Tensor())}, run, [sink](const Backward& b) {
    Tensors result{b.needed[0] ? input_grad(b.grad, b.saved[1]) : Tensor(), Tensor(), bias_grad(b)};
    if (b.needed[1]) add_linear_weight_grad(sink, b.grad, b.saved[0]);
    return result;
  });
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  m.def("linear_input_grad(Tensor grad, Tensor weight) -> Tensor");
  m.def("linear_weight_grad(Tensor grad, Tensor x) -> Tensor");
  m.def("linear_bias_grad(Tensor grad) -> Tensor");
  m.def("linear_weight_grad_(Tensor(a!) main, Tensor grad, Tensor x) -> ()");
  m.def("linear_weight_grad_set_(Tensor(a!) main, Tensor grad, Tensor x) -> ()");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("linear", reference);
  m.impl("linear_input_grad", reference_input_grad);
  m.impl("linear_weight_grad", reference_weight_grad);
  m.impl("linear_bias_grad", reference_bias_grad);
  m.impl("linear_weight_grad_", reference_add_weight_grad);
  m.impl("linear_weight_grad_set_", reference_set_weight_grad);
}
#if defined(__aarch64__)
TORCH_LIBRARY_IMPL(concord, CPU, m) {
  m.impl("linear", cpu);
  m.impl("linear_input_grad", cpu_input_grad);
  m.impl("linear_weight_grad", cpu_weight_grad);
}
#endif
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("linear", autograd); }

void check_main(const Tensor& main, int64_t out, int64_t in, at::Device device) {
  const bool fits = main.defined() && main.dim() == 2 && main.size(0) == out && main.size(1) == in &&
                    GradSink::is_main_type(main.scalar_type()) && main.device() == device;
  if (fits) return;
  refuse("linear",
         fmt::format("the main gradient is {}; for this weight it must be Float, Double or BFloat16 [{}, {}] on {}",
                     text_of(main), out, in, device.str()));
}

}  // namespace
}  // namespace ops::linear_op

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const GradSink* sink,
                  Fp8Layer* fp8) {
  using namespace ops;
  using namespace ops::linear_op;
  check_floating("linear", "x", x);
  check_like("linear", "weight", weight, x);
  if (bias.defined()) check_like("linear", "bias", bias, x);
  const bool fits = x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) &&
                    (!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)));
  if (!fits) {
    refuse("linear", fmt::format("x is {}, weight {}, bias {}; they must be [..., in], [out, in] and [out]", text_of(x),
                                 text_of(weight), text_of(bias)));
  }
  const std::optional<at::Tensor> shift = bias.defined() ? std::optional(bias) : std::nullopt;
  if (sink == nullptr) return fp8 != nullptr ? fp8_linear(x, weight, bias, nullptr, *fp8) : forward(x, weight, shift);
  check_main(sink->main, weight.size(0), weight.size(1), weight.device());
  return fp8 != nullptr ? fp8_linear(x, weight, bias, sink, *fp8) : into_sink(x, weight, shift, *sink);
}

at::Tensor linear_input_grad(const at::Tensor& grad, const at::Tensor& weight, Fp8Layer* fp8) {
  const at::NoGradGuard no_grad;
  if (fp8 != nullptr) return fp8_input_grad(grad, weight, *fp8);
  return ops::linear_op::input_grad(grad, weight);
}

at::Tensor linear_bias_grad(const at::Tensor& grad) {
  static const auto op = ops::find<at::Tensor(const at::Tensor&)>("concord::linear_bias_grad");
  return op.call(grad);
}

at::Tensor linear_weight_grad(const at::Tensor& grad, const at::Tensor& x, Fp8Layer* fp8) {
  const at::NoGradGuard no_grad;
  if (fp8 != nullptr) return fp8_weight_grad(nullptr, grad, x, *fp8);
  return ops::linear_op::weight_grad(grad, x);
}

void add_linear_weight_grad(const at::Tensor& main, const at::Tensor& grad, const at::Tensor& x, Fp8Layer* fp8) {
  add_linear_weight_grad(GradSink{.main = main}, grad, x, fp8);
}

void add_linear_weight_grad(const GradSink& sink, const at::Tensor& grad, const at::Tensor& x, Fp8Layer* fp8) {
  const at::NoGradGuard no_grad;
  ops::linear_op::check_main(sink.main, grad.size(-1), x.size(-1), x.device());
  if (fp8 != nullptr) {
    fp8_weight_grad(&sink, grad, x, *fp8);
    return;
  }
  // Detached from the graph, which would otherwise live as long as the deferred addition.
  const at::Tensor out = grad.detach(), in = x.detach();
  sink.add([out, in](at::Tensor& main) { ops::linear_op::add_weight_grad(main, out, in); },
           [out, in](at::Tensor& main) { ops::linear_op::set_weight_grad(main, out, in); });
}

}  // namespace concord
