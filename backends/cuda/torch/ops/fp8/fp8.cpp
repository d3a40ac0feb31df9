// FP8 matrices and their products on CUDA: custom kernels and cublasLt. The reference handles sizes that are not
// multiples of 16, and products of blocks without a Hopper or whose depth is not a multiple of 128.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <tuple>

#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/fp8/fp8_kernels.h"
#include "backends/cuda/torch/ops/gemm/gemm.h"
#include "backends/cuda/torch/ops/gemm/run_gemm.h"
#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// [way]
enum Fp8Way { kByReference, kTimed, kTimedBlocks };
const Choice kFp8Product[3] = {{"fp8: the reference", kShortTypes},
                               {"fp8: a timed GEMM", kShortTypes, has_timed_gemms},
                               {"fp8: a timed GEMM of blocks", kShortTypes, has_block_scaled_gemms}};

Three three_of(const std::vector<c10::IValue>& made) {
  return {made[0].toTensor(), made[1].toTensor(), made[2].toTensor()};
}

Narrow narrow_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat8_e4m3fn: return Narrow::e4m3;
    case at::kFloat8_e5m2: return Narrow::e5m2;
    default: return Narrow::none;
  }
}

bool is_amax(const Tensor& x) { return x.scalar_type() == at::kFloat && x.numel() == 1; }

// A quantized matrix of |columns| columns, and the tensors that own the memory of |to|.
struct Quantized {
  Quantized(const Tensor& x, int64_t columns, const Tensor& amax, const MaybeTensor& seen, int64_t format)
      : narrow(format == 0 ? Narrow::e4m3 : Narrow::e5m2) {
    const auto options = x.options().dtype(format == 0 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2);
    rows = at::empty({x.size(0), columns}, options);
    transposed = at::empty({columns, x.size(0)}, options);
    scale = at::empty({1}, amax.options());
    to = {amax.const_data_ptr<float>(), seen ? seen->mutable_data_ptr<float>() : nullptr, rows.mutable_data_ptr(),
          transposed.mutable_data_ptr(), scale.mutable_data_ptr<float>()};
  }
  Three result() const { return {rows, transposed, scale}; }

  Narrow narrow;
  Tensor rows, transposed, scale;
  Fp8Arrays to;
};

void amax_on_device(Tensor& amax, const Tensor& x) {
  const bool dense = x.is_contiguous() && is_amax(amax) && x.numel() % 8 == 0;
  if (!dense || !fp8_fits({16, 16}, type_of(x), {x.const_data_ptr()})) {
    reference("concord::fp8_amax_", {amax, x});
    return;
  }
  const OnDevice device(x.device());
  fp8_amax(where(x), x.numel(), x.const_data_ptr(), amax.mutable_data_ptr<float>());
}

Three quantise_on_device(const Tensor& x, const Tensor& amax, const MaybeTensor& seen, int64_t format) {
  const Tensor dense = x.contiguous();
  const Rows shape{dense.size(0), dense.size(1)};
  if (!is_amax(amax) || !fp8_fits(shape, type_of(x), {dense.const_data_ptr()})) {
    return three_of(reference("concord::fp8_quantise", {x, amax, seen, format}));
  }
  const OnDevice device(x.device());
  const Quantized made(dense, shape.width, amax, seen, format);
  fp8_quantise(where(dense), shape, dense.const_data_ptr(), made.narrow, made.to);
  return made.result();
}

Three fp8_swiglu_on_device(const Tensor& gate_up, const Tensor& amax, const MaybeTensor& seen, int64_t format) {
  const Tensor dense = gate_up.contiguous();
  const Rows shape{dense.size(0), dense.size(1) / 2};
  if (!is_amax(amax) || !fp8_fits(shape, type_of(dense), {dense.const_data_ptr()})) {
    return three_of(reference("concord::fp8_swiglu", {gate_up, amax, seen, format}));
  }
  const OnDevice device(dense.device());
  const Quantized made(dense, shape.width, amax, seen, format);
  fp8_swiglu(where(dense), shape, dense.const_data_ptr(), made.narrow, made.to);
  return made.result();
}

Three fp8_swiglu_backward_on_device(const Tensor& grad, const Tensor& gate_up, const Tensor& amax,
                                    const MaybeTensor& seen, int64_t format) {
  const Tensor dense = gate_up.contiguous(), g = grad.contiguous();
  const Rows shape{g.size(0), g.size(1)};
  if (!is_amax(amax) || !fp8_fits(shape, type_of(dense), {dense.const_data_ptr(), g.const_data_ptr()})) {
    return three_of(reference("concord::fp8_swiglu_backward", {grad, gate_up, amax, seen, format}));
  }
  const OnDevice device(dense.device());
  const Quantized made(dense, dense.size(1), amax, seen, format);
  fp8_swiglu_backward(where(dense), shape, g.const_data_ptr(), dense.const_data_ptr(), made.narrow, made.to);
  return made.result();
}

// ------------------------------------------------------------------------------------------------------------ blocks

int64_t blocks_of(int64_t size) { return (size + kFp8BlockSize - 1) / kFp8BlockSize; }

// [rows, columns] of scales as cublasLt takes them: columns one after another, or, of squares, lines that are multiples
// of 4 long. What such a line has too many is not in the tensor.
Tensor scales_by_column(int64_t rows, int64_t columns, const Tensor& like) {
  return at::empty({columns, rows}, like.options().dtype(at::kFloat)).t();
}
Tensor scales_by_square(int64_t rows, int64_t columns, const Tensor& like) {
  const int64_t line = (columns + 3) / 4 * 4;
  return at::zeros({rows, line}, like.options().dtype(at::kFloat)).narrow(1, 0, columns);
}

Four quantise_blocks_on_device(const Tensor& x, bool square) {
  const Tensor dense = x.contiguous();
  const Rows shape{dense.size(0), dense.size(1)};
  if (!fp8_fits(shape, type_of(x), {dense.const_data_ptr()})) {
    const auto made = reference("concord::fp8_quantise_blocks", {x, square});
    return {made[0].toTensor(), made[1].toTensor(), made[2].toTensor(), made[3].toTensor()};
  }
  const OnDevice device(x.device());
  const auto options = x.options().dtype(at::kFloat8_e4m3fn);
  const Tensor rows = at::empty({shape.rows, shape.width}, options);
  const Tensor columns = at::empty({shape.width, shape.rows}, options);
  const auto scales_for = [&](int64_t lines, int64_t length) {
    return square ? scales_by_square(blocks_of(lines), blocks_of(length), x)
                  : scales_by_column(lines, blocks_of(length), x);
  };
  const Tensor row_scales = scales_for(shape.rows, shape.width), column_scales = scales_for(shape.width, shape.rows);
  fp8_quantise_blocks(where(dense), shape, dense.const_data_ptr(), square,
                      {rows.mutable_data_ptr(), columns.mutable_data_ptr(), row_scales.mutable_data_ptr<float>(),
                       column_scales.mutable_data_ptr<float>(), row_scales.stride(0), column_scales.stride(0)});
  return {rows, row_scales, columns, column_scales};
}

// Returns the unit of |scales|, by the rule of the reference.
Gemm::Scales unit_of(const Tensor& numbers, const Tensor& scales) {
  if (scales.dim() < 2) return Gemm::Scales::matrix;
  return scales.size(0) == numbers.size(0) ? Gemm::Scales::row_blocks : Gemm::Scales::squares;
}

// |scales| as they are, or copied to where a GEMM can read them.
Tensor laid(const Tensor& scales, Gemm::Scales unit) {
  if (unit == Gemm::Scales::matrix) return scales;
  const bool by_column = unit == Gemm::Scales::row_blocks;
  const bool fits = by_column ? scales.t().is_contiguous() : scales.stride(1) == 1 && scales.stride(0) % 4 == 0;
  if (fits && reinterpret_cast<uintptr_t>(scales.const_data_ptr()) % 16 == 0) return scales;
  const Tensor copy = by_column ? scales_by_column(scales.size(0), scales.size(1), scales)
                                : scales_by_square(scales.size(0), scales.size(1), scales);
  copy.copy_(scales);
  return copy;
}

// ---------------------------------------------------------------------------------------------------------- products

// a [m, k] b [n, k]^T. Sums of blocks are never fast: their scales are multiplied with in fp32.
Gemm gemm_of(const Tensor& a, const Tensor& a_scales, const Tensor& b, const Tensor& b_scales, bool fast) {
  const Gemm::Scales unit = unit_of(a, a_scales);
  return {.rows = a.size(0),
          .columns = b.size(0),
          .depth = a.size(1),
          .transposed_b = true,
          .narrow_a = narrow_of(a),
          .narrow_b = narrow_of(b),
          .fast = fast && unit == Gemm::Scales::matrix,
          .scales_a = unit,
          .scales_b = unit_of(b, b_scales)};
}

Fp8Way way_of(const Gemm& g, std::initializer_list<const Tensor*> dense,
              std::initializer_list<const Tensor*> all_scales) {
  bool timed = g.narrow_a != Narrow::none && g.narrow_b != Narrow::none;
  for (const Tensor* each : dense) timed = timed && is_ready(*each);
  for (const Tensor* each : all_scales) timed = timed && each->scalar_type() == at::kFloat;
  if (!timed || !takes(g)) return kByReference;
  return g.scales_a == Gemm::Scales::matrix ? kTimed : kTimedBlocks;
}

Tensor matmul_on_device(const Tensor& a, const Tensor& a_scales, const Tensor& b, const Tensor& b_scales,
                        const MaybeTensor& bias, at::ScalarType type, bool fast) {
  const auto by_reference = [&] {
    return reference("concord::fp8_matmul", {a, a_scales, b, b_scales, bias, type, fast})[0].toTensor();
  };
  const bool is_short = type == at::kBFloat16 || type == at::kHalf;
  if (!is_short || (bias && (bias->scalar_type() != type || !is_ready(*bias)))) return by_reference();
  Gemm g = gemm_of(a, a_scales, b, b_scales, fast);
  g.type = type == at::kBFloat16 ? Type::bf16 : Type::f16;
  g.has_bias = bias.has_value();
  const OnDevice device(a.device());
  const Tensor c = at::empty({g.rows, g.columns}, a_scales.options().dtype(type));
  const Fp8Way way = way_of(g, {&a, &b, &c}, {&a_scales, &b_scales});
  kFp8Product[way].take(g.type);
  if (way == kByReference) return by_reference();
  const Tensor a_laid = laid(a_scales, g.scales_a), b_laid = laid(b_scales, g.scales_b);
  run_gemm(g,
           {.a = a.const_data_ptr(),
            .b = b.const_data_ptr(),
            .c = c.mutable_data_ptr(),
            .bias = bias ? bias->const_data_ptr() : nullptr,
            .a_scale = a_laid.const_data_ptr<float>(),
            .b_scale = b_laid.const_data_ptr<float>()},
           c);
  return c;
}

void matmul_into_on_device(Tensor& main, const Tensor& a, const Tensor& a_scales, const Tensor& b,
                           const Tensor& b_scales, bool adds) {
  Gemm g = gemm_of(a, a_scales, b, b_scales, /*fast=*/false);
  g.wide = true;
  g.adds = adds;
  if (main.scalar_type() != at::kFloat || way_of(g, {&a, &b, &main}, {&a_scales, &b_scales}) == kByReference) {
    reference("concord::fp8_matmul_", {main, a, a_scales, b, b_scales, adds});
    return;
  }
  const OnDevice device(a.device());
  const Tensor a_laid = laid(a_scales, g.scales_a), b_laid = laid(b_scales, g.scales_b);
  run_gemm(g,
           {.a = a.const_data_ptr(),
            .b = b.const_data_ptr(),
            .c = main.mutable_data_ptr(),
            .a_scale = a_laid.const_data_ptr<float>(),
            .b_scale = b_laid.const_data_ptr<float>()},
           main);
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("fp8_amax_", amax_on_device);
  m.impl("fp8_quantise", quantise_on_device);
  m.impl("fp8_quantise_blocks", quantise_blocks_on_device);
  m.impl("fp8_swiglu", fp8_swiglu_on_device);
  m.impl("fp8_swiglu_backward", fp8_swiglu_backward_on_device);
  m.impl("fp8_matmul", matmul_on_device);
  m.impl("fp8_matmul_", matmul_into_on_device);
}

}  // namespace
}  // namespace concord::cuda::torch_side
