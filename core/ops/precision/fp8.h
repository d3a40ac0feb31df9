// Matrices of 8-bit floats, and the products of two of them.
//
// A number x is stored as x times a scale, rounded to nearest even: one scale for the whole matrix, so that the largest
// absolute value ("amax") becomes the largest number of the format, or one per block. What is divided by is the amax
// that the caller names, which may be that of an earlier step; larger values then become the largest number. A NaN or
// Inf becomes a NaN, so that checks of results find it. Everything here is computed in fp32 whatever the type of x, so
// that all devices write the same bits.
//
// A GEMM of 8-bit floats takes operands whose rows are what it sums over. A matrix is therefore kept twice, as it is
// and transposed: a layer's forward, input gradient and weight gradient need one or the other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace concord {

enum class Fp8Format : int64_t { e4m3, e5m2 };

double largest_of(Fp8Format format);  // 448 and 57,344
c10::ScalarType type_of(Fp8Format format);

// [r, c]. Numbers times their scales are what they stand for; scales are fp32, [1] for the whole matrix, or one per
// block: [blocks of rows, blocks of columns].
struct Fp8Matrix {
  at::Tensor rows, row_scales;        // [r, c]
  at::Tensor columns, column_scales;  // [c, r]
};

// How a matrix gets its scales.
struct Fp8Scaling {
  enum class Unit {
    matrix,  // one scale, largest / amax; 1 where that is 0, NaN or Inf
    // In e4m3, powers of two, the largest that keep all elements in range. Sizes need not be multiples of 128: the last
    // blocks are smaller.
    row_blocks,     // for every 128 columns of each row, and every 128 rows of each column in the transposed one
    square_blocks,  // for every 128 x 128 elements
  };
  Fp8Format format = Fp8Format::e4m3;
  Unit unit = Unit::matrix;
  // The rest only of whole matrices, [1] of fp32.
  at::Tensor amax = {};  // undefined: that of the matrix itself, which is read twice then
  at::Tensor seen = {};  // if defined, becomes the larger of itself and the amax of the matrix
};
inline constexpr int64_t kFp8Block = 128;

// |x| [r, c].
Fp8Matrix fp8_quantise(const at::Tensor& x, const Fp8Scaling& scaling);
// The same of swiglu(gate_up) and of its derivative, where possible without the tensor in between.
Fp8Matrix fp8_swiglu(const at::Tensor& gate_up, const Fp8Scaling& scaling);
Fp8Matrix fp8_swiglu_backward(const at::Tensor& grad, const at::Tensor& gate_up, const Fp8Scaling& scaling);

// a [m, k] and b [n, k], with their scales -> a b^T [m, n] of |type|; |bias| [n] or undefined. |fast|: sums may be kept
// in fewer than 32 bits, as Hopper's tensor cores do where they are not told otherwise.
at::Tensor fp8_matmul(const at::Tensor& a, const at::Tensor& a_scales, const at::Tensor& b, const at::Tensor& b_scales,
                      const at::Tensor& bias, c10::ScalarType type, bool fast);
// main [m, n] of fp32 (+)= a b^T.
void fp8_matmul_into(const at::Tensor& main, const at::Tensor& a, const at::Tensor& a_scales, const at::Tensor& b,
                     const at::Tensor& b_scales, bool adds);

}  // namespace concord
