// FP8 matrices and their GEMMs.
//
// An element x is stored as x times a scale, rounded to nearest even: one scale per matrix, so that its amax becomes
// the largest number of the format, or one per block. The scale is derived from |amax|, which may come from an earlier
// step (delayed scaling); larger values saturate. NaN and Inf become NaN, so that checks of results detect them.
// Everything is computed in fp32 whatever the type of x, so that all devices write the same bits.
//
// An FP8 GEMM needs operands whose rows are along the summed dimension. A matrix is therefore stored twice, as is and
// transposed: a layer's forward, dgrad and wgrad need one or the other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace concord {

enum class Fp8Format : int64_t { e4m3, e5m2 };

double largest_of(Fp8Format format);  // 448 and 57,344
c10::ScalarType type_of(Fp8Format format);

// An FP8 matrix [r, c]. Stored numbers times their scales are the values; scales are fp32, [1] for the whole matrix, or
// one per block: [blocks of rows, blocks of columns].
struct Fp8Matrix {
  at::Tensor rowwise, rowwise_scales;        // [r, c]
  at::Tensor columnwise, columnwise_scales;  // [c, r]
};

// How scales are computed.
struct Fp8Scaling {
  enum class Unit {
    matrix,  // one scale, largest / amax; 1 if amax is 0, NaN or Inf
    // Block scales, in e4m3, are the largest powers of two that keep all elements in range. Sizes need not be multiples
    // of 128: the last blocks are smaller.
    row_blocks,     // 128 columns of each row, and 128 rows of each column in the transposed matrix
    square_blocks,  // 128 x 128 elements
  };
  Fp8Format format = Fp8Format::e4m3;
  Unit unit = Unit::matrix;
  // Only for whole matrices, fp32 [1]:
  at::Tensor amax = {};  // undefined: that of the matrix itself, which is then read twice
  at::Tensor seen = {};  // if defined, set to the maximum of itself and the amax of the matrix
};
inline constexpr int64_t kFp8Block = 128;

// Quantises |x| [r, c].
Fp8Matrix fp8_quantise(const at::Tensor& x, const Fp8Scaling& scaling);
// Quantise swiglu(gate_up) and its derivative, if possible without storing the intermediate tensor.
Fp8Matrix fp8_swiglu(const at::Tensor& gate_up, const Fp8Scaling& scaling);
Fp8Matrix fp8_swiglu_backward(const at::Tensor& grad, const at::Tensor& gate_up, const Fp8Scaling& scaling);

// a [m, k] and b [n, k], with their scales -> a b^T [m, n] in |type|; |bias| [n] or undefined. |fast| allows
// accumulation in less than fp32, the default of Hopper's tensor cores.
at::Tensor fp8_matmul(const at::Tensor& a, const at::Tensor& a_scales, const at::Tensor& b, const at::Tensor& b_scales,
                      const at::Tensor& bias, c10::ScalarType type, bool fast);
// main [m, n], fp32, (+)= a b^T.
void fp8_matmul_into(const at::Tensor& main, const at::Tensor& a, const at::Tensor& a_scales, const at::Tensor& b,
                     const at::Tensor& b_scales, bool adds);

}  // namespace concord
