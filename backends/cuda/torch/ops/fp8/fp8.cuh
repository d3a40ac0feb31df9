// Helpers of kernels that write FP8 matrices: rounding, and writing a tile to the transposed matrix.
#pragma once

#include <cuda_fp8.h>

#include "backends/cuda/torch/ops/device_math.cuh"

namespace concord::cuda::torch_side {

constexpr int kThreads = 256, kTile = 128, kVector = 8, kLines = 4;
constexpr int kWords = kTile / kLines;  // words, of four rows each, in a column of a tile

inline __device__ float scale_for(float amax, float largest) {
  if (!(amax > 0) || !isfinite(amax)) return 1;
  return fminf(largest / amax, 3.4028234663852886e38F);
}

// Rounds two numbers to FP8; the first is in the lower byte. Adding x times 0 turns Inf into NaN and changes no other
// value.
inline __device__ uint32_t narrowed(float x, float y, float x_scale, float y_scale, __nv_fp8_interpretation_t format) {
  const float2 both{fmaf(x, x_scale, x * 0.0F), fmaf(y, y_scale, y * 0.0F)};
  return __nv_cvt_float2_to_fp8x2(both, __NV_SATFINITE, format);
}
// Rounds four numbers to FP8, in a word.
inline __device__ uint32_t narrowed_by(const float* x, float scale, __nv_fp8_interpretation_t format) {
  return narrowed(x[0], x[1], scale, scale, format) | narrowed(x[2], x[3], scale, scale, format) << 16;
}

// Returns the bits of the absolute value, which are ordered like it; those of a NaN are above all others.
inline __device__ unsigned bits_of_size(float x) { return __float_as_uint(fabsf(x)); }

// kVector packed elements, two per register.
inline __device__ uint4 fetch(const void* from) { return *static_cast<const uint4*>(from); }

inline __device__ float2 pair_of(uint32_t bits, __half) {
  __half2 both;
  memcpy(&both, &bits, sizeof(both));
  return __half22float2(both);
}
inline __device__ float2 pair_of(uint32_t bits, __nv_bfloat16) {
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000U)};
}

template <class T>
__device__ void unpack(const uint4& from, float (&to)[kVector]) {
  const uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 both = pair_of(words[k], T{});
    to[2 * k] = both.x;
    to[2 * k + 1] = both.y;
  }
}

// Transposes four rows of four bytes.
inline __device__ void transpose(const uint32_t (&rows)[kLines], uint32_t (&columns)[4]) {
  const uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140), low23 = __byte_perm(rows[2], rows[3], 0x5140);
  const uint32_t high01 = __byte_perm(rows[0], rows[1], 0x7362), high23 = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(low01, low23, 0x5410);
  columns[1] = __byte_perm(low01, low23, 0x7632);
  columns[2] = __byte_perm(high01, high23, 0x5410);
  columns[3] = __byte_perm(high01, high23, 0x7632);
}

// Index of a word in a tile in shared memory, which is stored by columns, four rows per word. Words are shifted by two
// for each group of columns, so that the threads of a warp, which hold 16 groups of columns and two of rows, write to
// different banks.
inline __device__ int word_at(int column, int lines) {
  return column * kWords + (lines + 2 * (column / kVector)) % kWords;
}

// Stores kLines rows, group |lines| of the tile, of kVector columns.
inline __device__ void keep_columns(const uint32_t (&words)[2][kLines], int column, int lines, uint32_t* tile) {
  for (int half = 0; half < 2; ++half) {
    uint32_t turned[4];
    transpose(words[half], turned);
    for (int k = 0; k < 4; ++k) tile[word_at(column + 4 * half + k, lines)] = turned[k];
  }
}

// Copies a tile that all threads of the block have written to |to|, the transposed matrix. Sizes are multiples of 16.
inline __device__ void write_columns(Rows shape, int64_t first_row, int64_t first_column, const uint32_t* tile,
                                     uint8_t* to) {
  constexpr int kPieces = kWords / 4;  // pieces of 16 rows in a column
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  for (int at = static_cast<int>(threadIdx.x) / kPieces; at < kTile; at += kThreads / kPieces) {
    const int64_t row = first_row + piece * 16;
    if (row >= shape.rows || first_column + at >= shape.width) continue;
    Vector<uint32_t, 4> lines;
    for (int k = 0; k < 4; ++k) lines.at[k] = tile[word_at(at, piece * 4 + k)];
    *reinterpret_cast<Vector<uint32_t, 4>*>(to + (first_column + at) * shape.rows + row) = lines;
  }
}

// Calls body(T) for a 16-bit type.
template <class Body>
void visit_short(Type type, const Body& body) {
  if (type == Type::f16) return body(__half{});
  body(__nv_bfloat16{});
}

}  // namespace concord::cuda::torch_side
