// CUDA kernels of FP8 matrices. See kernels.h.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "backends/cuda/torch/ops/kernels.h"

namespace concord::cuda::torch_side {

enum class Narrow { none, e4m3, e5m2 };  // FP8 formats

// An FP8 matrix with the scale largest / amax, row-wise and transposed; see core/ops/precision/fp8.h. Requires 16-bit
// types, sizes that are multiples of 16, and arrays that begin at multiples of 16 bytes.
struct Fp8Arrays {
  const float* amax;
  float* seen;  // set to max(*seen, amax of the matrix); may be null
  void *rows, *columns;
  float* inverse;  // set to 1 / scale
};
bool fp8_fits(Rows shape, Type type, std::initializer_list<const void*> pointers);
void fp8_amax(Where where, int64_t count, const void* x, float* amax);  // |count| is a multiple of 8
void fp8_quantise(Where where, Rows shape, const void* x, Narrow format, const Fp8Arrays& to);
// |shape| is the shape of one half of |gate_up| and of |grad|; the derivative's matrix is twice as wide.
void fp8_swiglu(Where where, Rows shape, const void* gate_up, Narrow format, const Fp8Arrays& to);
void fp8_swiglu_backward(Where where, Rows shape, const void* grad, const void* gate_up, Narrow format,
                         const Fp8Arrays& to);

// An e4m3 matrix with a scale per block, in cublasLt's layout: one for 128 columns of a row, [blocks, rows], or if
// |square| for 128 x 128 elements, [blocks of rows, row_line] and [blocks of columns, column_line].
constexpr int64_t kFp8BlockSize = 128;
struct Fp8BlockArrays {
  void *rows, *columns;
  float *row_scales, *column_scales;
  int64_t row_line, column_line;
};
void fp8_quantise_blocks(Where where, Rows shape, const void* x, bool square, const Fp8BlockArrays& to);

}  // namespace concord::cuda::torch_side
