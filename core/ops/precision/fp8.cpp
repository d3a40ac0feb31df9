#include "core/ops/precision/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ldexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <limits>
#include <optional>
#include <tuple>

#include "core/ops/check.h"
#include "core/ops/dispatch.h"

namespace concord {
namespace ops::fp8_op {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// -------------------------------------------------------------------------------------------------------- reference

// Returns the scale, as every kernel computes it: 1 if amax is 0, NaN or Inf.
Tensor scale_for(const Tensor& amax, Fp8Format format) {
  const Tensor from = amax.to(at::kFloat);
  const Tensor scale = at::full({1}, largest_of(format), from.options()) / from;
  const Tensor usable = (from > 0).logical_and(at::isfinite(from));
  return at::where(usable, scale.clamp_max(std::numeric_limits<float>::max()), at::ones_like(from));
}

// Quantises |wide|; |scale| broadcasts to it.
Tensor rounded(const Tensor& wide, const Tensor& scale, Fp8Format format) {
  const double most = largest_of(format);
  const Tensor scaled = (wide * scale).clamp(-most, most);
  const Tensor nothing = at::full({1}, std::numeric_limits<float>::quiet_NaN(), wide.options());
  return at::where(at::isfinite(wide), scaled, nothing).to(type_of(format));
}

void reference_amax(Tensor& amax, const Tensor& x) {
  if (x.numel() == 0) return;
  amax.copy_(at::maximum(amax, x.abs().amax().to(amax.scalar_type()).reshape({1})));
}

Three reference_quantise(const Tensor& x, const Tensor& amax, const MaybeTensor& seen, int64_t format) {
  const auto as = static_cast<Fp8Format>(format);
  const Tensor scale = scale_for(amax, as);
  if (seen) {
    Tensor to = *seen;
    reference_amax(to, x);
  }
  const Tensor rows = rounded(x.to(at::kFloat), scale, as).contiguous();
  return {rows, rows.t().contiguous(), scale.reciprocal()};
}

int64_t blocks(int64_t size) { return (size + kFp8Block - 1) / kFp8Block; }

// [r, c] -> [r / lines, lines, c / 128, 128], padded with zeros.
Tensor in_blocks(const Tensor& wide, int64_t lines) {
  const int64_t rows = (wide.size(0) + lines - 1) / lines, columns = blocks(wide.size(1));
  const Tensor padded =
      at::constant_pad_nd(wide, {0, columns * kFp8Block - wide.size(1), 0, rows * lines - wide.size(0)});
  return padded.view({rows, lines, columns, kFp8Block});
}

struct Blocks {
  Tensor values, scales;  // scales that convert the stored numbers back
};

// Returns the largest power of two that keeps |amax| below the largest number.
Tensor power_below(const Tensor& scale) {
  const auto [fraction, exponent] = at::frexp(scale);
  return at::ldexp(at::ones_like(fraction), exponent - 1);
}

Blocks quantised_blocks(const Tensor& x, int64_t lines) {
  const Tensor wide = in_blocks(x.to(at::kFloat), lines);
  const Tensor scale = power_below(scale_for(wide.abs().amax({1, 3}, /*keepdim=*/true), Fp8Format::e4m3));
  const Tensor values = rounded(wide, scale, Fp8Format::e4m3).flatten(2, 3).flatten(0, 1);
  return {values.narrow(0, 0, x.size(0)).narrow(1, 0, x.size(1)).contiguous(),
          scale.reciprocal().squeeze(3).squeeze(1)};
}

Four reference_quantise_blocks(const Tensor& x, bool square) {
  const Blocks rows = quantised_blocks(x, square ? kFp8Block : 1);
  if (square) return {rows.values, rows.scales, rows.values.t().contiguous(), rows.scales.t().contiguous()};
  const Blocks columns = quantised_blocks(x.t(), 1);
  return {rows.values, rows.scales, columns.values, columns.scales};
}

// Returns the values of |numbers| with |scales|.
Tensor meant(const Tensor& numbers, const Tensor& scales) {
  const Tensor wide = numbers.to(scales.scalar_type());
  if (scales.dim() == 1) return wide * scales;
  const int64_t lines = scales.size(0) == numbers.size(0) ? 1 : kFp8Block;
  const auto spread = [](const Tensor& x, int64_t dim, int64_t times, int64_t size) {
    return x.repeat_interleave(times, dim).narrow(dim, 0, size);
  };
  return wide * spread(spread(scales, 0, lines, numbers.size(0)), 1, kFp8Block, numbers.size(1));
}

Tensor reference_matmul(const Tensor& a, const Tensor& a_scales, const Tensor& b, const Tensor& b_scales,
                        const MaybeTensor& bias, at::ScalarType type, bool /*fast*/) {
  const Tensor product = at::matmul(meant(a, a_scales), meant(b, b_scales).t());
  const auto wanted = product.scalar_type() == at::kDouble ? at::kDouble : type;  // the harness's exact values
  return (bias ? product + bias->to(product.scalar_type()) : product).to(wanted);
}

void reference_matmul_into(Tensor& main, const Tensor& a, const Tensor& a_scales, const Tensor& b,
                           const Tensor& b_scales, bool adds) {
  main.addmm_(meant(a, a_scales), meant(b, b_scales).t(), /*beta=*/adds ? 1 : 0);
}

Tensor swiglu_of(const Tensor& gate_up) {
  static const auto op = find<Tensor(const Tensor&)>("concord::swiglu");
  return op.call(gate_up);
}

Tensor swiglu_grad_of(const Tensor& grad, const Tensor& gate_up) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&)>("concord::swiglu_backward");
  return op.call(grad, gate_up);
}

Three quantise(const Tensor& x, const Tensor& amax, const MaybeTensor& seen, int64_t format) {
  static const auto op =
      find<Three(const Tensor&, const Tensor&, const MaybeTensor&, int64_t)>("concord::fp8_quantise");
  return op.call(x, amax, seen, format);
}

Three reference_swiglu(const Tensor& gate_up, const Tensor& amax, const MaybeTensor& seen, int64_t format) {
  return quantise(swiglu_of(gate_up), amax, seen, format);
}

Three reference_swiglu_backward(const Tensor& grad, const Tensor& gate_up, const Tensor& amax, const MaybeTensor& seen,
                                int64_t format) {
  return quantise(swiglu_grad_of(grad, gate_up), amax, seen, format);
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("fp8_amax_(Tensor(a!) amax, Tensor x) -> ()");
  m.def("fp8_quantise(Tensor x, Tensor amax, Tensor(a!)? seen, int format) -> (Tensor, Tensor, Tensor)");
  m.def("fp8_quantise_blocks(Tensor x, bool square) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "fp8_matmul(Tensor a, Tensor a_scales, Tensor b, Tensor b_scales, Tensor? bias, ScalarType type, bool fast) -> "
      "Tensor");
  m.def("fp8_matmul_(Tensor(a!) main, Tensor a, Tensor a_scales, Tensor b, Tensor b_scales, bool adds) -> ()");
  m.def("fp8_swiglu(Tensor gate_up, Tensor amax, Tensor(a!)? seen, int format) -> (Tensor, Tensor, Tensor)");
  m.def(
      "fp8_swiglu_backward(Tensor grad, Tensor gate_up, Tensor amax, Tensor(a!)? seen, int format) -> (Tensor, Tensor, "
      "Tensor)");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("fp8_amax_", reference_amax);
  m.impl("fp8_quantise", reference_quantise);
  m.impl("fp8_quantise_blocks", reference_quantise_blocks);
  m.impl("fp8_matmul", reference_matmul);
  m.impl("fp8_matmul_", reference_matmul_into);
  m.impl("fp8_swiglu", reference_swiglu);
  m.impl("fp8_swiglu_backward", reference_swiglu_backward);
}

void check_matrix(const char* op, const char* what, const Tensor& x) {
  check_floating(op, what, x);
  if (x.dim() != 2) refuse(op, fmt::format("{} is {}; it must be a matrix", what, text_of(x)));
}

MaybeTensor maybe(const Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; }

void add_amax(Tensor amax, const Tensor& x) {
  static const auto op = find<void(Tensor&, const Tensor&)>("concord::fp8_amax_");
  op.call(amax, x);
}

Tensor amax_for(const Tensor& x, const Fp8Scaling& scaling) {
  if (scaling.amax.defined()) return scaling.amax;
  const Tensor own = at::zeros({1}, x.options().dtype(at::kFloat).requires_grad(false));
  add_amax(own, x);
  return own;
}

Fp8Matrix in_blocks_of(const Tensor& x, const Fp8Scaling& scaling) {
  if (scaling.format != Fp8Format::e4m3) refuse("fp8_quantise", "blocks are of e4m3 only");
  static const auto op = find<Four(const Tensor&, bool)>("concord::fp8_quantise_blocks");
  const auto [rowwise, rowwise_scales, columnwise, columnwise_scales] =
      op.call(x, scaling.unit == Fp8Scaling::Unit::square_blocks);
  return {rowwise, rowwise_scales, columnwise, columnwise_scales};
}

Fp8Matrix with_one_scale(const Three& parts) {
  const auto& [rowwise, columnwise, scale] = parts;
  return {rowwise, scale, columnwise, scale};
}

}  // namespace
}  // namespace ops::fp8_op

using namespace ops::fp8_op;

double largest_of(Fp8Format format) { return format == Fp8Format::e4m3 ? 448 : 57344; }

c10::ScalarType type_of(Fp8Format format) { return format == Fp8Format::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2; }

Fp8Matrix fp8_quantise(const at::Tensor& x, const Fp8Scaling& scaling) {
  check_matrix("fp8_quantise", "x", x);
  const at::NoGradGuard no_grad;
  if (scaling.unit != Fp8Scaling::Unit::matrix) return in_blocks_of(x, scaling);
  return with_one_scale(quantise(x, amax_for(x, scaling), maybe(scaling.seen), static_cast<int64_t>(scaling.format)));
}

Fp8Matrix fp8_swiglu(const at::Tensor& gate_up, const Fp8Scaling& scaling) {
  check_matrix("fp8_swiglu", "gate_up", gate_up);
  const at::NoGradGuard no_grad;
  if (!scaling.amax.defined()) return fp8_quantise(swiglu_of(gate_up), scaling);
  static const auto op =
      ops::find<Three(const Tensor&, const Tensor&, const MaybeTensor&, int64_t)>("concord::fp8_swiglu");
  return with_one_scale(op.call(gate_up, scaling.amax, maybe(scaling.seen), static_cast<int64_t>(scaling.format)));
}

Fp8Matrix fp8_swiglu_backward(const at::Tensor& grad, const at::Tensor& gate_up, const Fp8Scaling& scaling) {
  check_matrix("fp8_swiglu_backward", "grad", grad);
  const at::NoGradGuard no_grad;
  if (!scaling.amax.defined()) return fp8_quantise(swiglu_grad_of(grad, gate_up), scaling);
  static const auto op = ops::find<Three(const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&, int64_t)>(
      "concord::fp8_swiglu_backward");
  return with_one_scale(
      op.call(grad, gate_up, scaling.amax, maybe(scaling.seen), static_cast<int64_t>(scaling.format)));
}

at::Tensor fp8_matmul(const at::Tensor& a, const at::Tensor& a_scales, const at::Tensor& b, const at::Tensor& b_scales,
                      const at::Tensor& bias, c10::ScalarType type, bool fast) {
  const at::NoGradGuard no_grad;
  static const auto op = ops::find<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                          const MaybeTensor&, at::ScalarType, bool)>("concord::fp8_matmul");
  return op.call(a, a_scales, b, b_scales, maybe(bias), type, fast);
}

void fp8_matmul_into(const at::Tensor& main, const at::Tensor& a, const at::Tensor& a_scales, const at::Tensor& b,
                     const at::Tensor& b_scales, bool adds) {
  const at::NoGradGuard no_grad;
  static const auto op = ops::find<void(Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool)>(
      "concord::fp8_matmul_");
  Tensor to = main;
  op.call(to, a, a_scales, b, b_scales, adds);
}

}  // namespace concord
