// FP8 matrices with a scale per block, row-wise and transposed, in one pass: a block of threads reads
// 128 x 128 elements, which are whole blocks of either kind, and keeps them in registers until it knows their scales.
#include <cuda_fp8.h>

#include "backends/cuda/torch/ops/device_math.cuh"
#include "backends/cuda/torch/ops/fp8/fp8.cuh"
#include "backends/cuda/torch/ops/fp8/fp8_kernels.h"

namespace concord::cuda::torch_side {
namespace {

constexpr int kAcross = kTile / kVector;             // threads side by side, each with kVector columns
constexpr int kDown = kThreads / kAcross;            // and below each other, each with kLines rows
constexpr int kTurns = kTile / (kDown * kLines);     // iterations of a thread over the tile
constexpr int kWarps = kThreads / 32, kPerWarp = 2;  // rows of threads in a warp
static_assert(kAcross == 16 && kTurns * kDown == kWords);

// The largest power of two that keeps |amax| within e4m3. The bits of a size, as bits_of_size().
__device__ float power_for(unsigned amax) {
  return __uint_as_float(__float_as_uint(scale_for(__uint_as_float(amax), 448.0F)) & 0x7f800000U);
}

// What a thread has of a tile: kLines rows in each turn.
template <class T>
struct Piece {
  uint4 raw[kTurns][kLines];  // zeros outside of the matrix
  int column;                 // column of its first element in the tile

  __device__ static int line_of(int turn) { return (static_cast<int>(threadIdx.x) / kAcross + turn * kDown) * kLines; }
  __device__ Piece(Rows shape, const T* x, int64_t first_row, int64_t first_column)
      : column(static_cast<int>(threadIdx.x) % kAcross * kVector) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
      for (int i = 0; i < kLines; ++i) {
        const int64_t row = first_row + line_of(turn) + i, at = first_column + column;
        raw[turn][i] = row < shape.rows && at < shape.width ? fetch(x + row * shape.width + at) : uint4{};
      }
    }
  }
};

// The scales of a tile, in shared memory. A square block's is that of all its rows and columns.
struct TileScales {
  float of_rows[kTile], of_columns[kTile];
};

template <class T>
__device__ void find_scales(const Piece<T>& piece, bool square, unsigned (&scratch)[kWarps][kTile],
                            TileScales& scales) {
  unsigned down[kVector] = {}, all = 0;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      float values[kVector];
      unpack<T>(piece.raw[turn][i], values);
      unsigned across = 0;
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const unsigned size = bits_of_size(values[k]);
        across = max(across, size);
        down[k] = max(down[k], size);
      }
      all = max(all, across);
#pragma unroll
      for (int other = 1; other < kAcross; other *= 2) across = max(across, __shfl_xor_sync(~0U, across, other));
      if (!square && piece.column == 0) scales.of_rows[Piece<T>::line_of(turn) + i] = power_for(across);
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (square) {
    all = __reduce_max_sync(~0U, all);
    if (threadIdx.x % 32 == 0) scratch[warp][0] = all;
  } else {
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      down[k] = max(down[k], __shfl_xor_sync(~0U, down[k], 32 / kPerWarp));
      if (threadIdx.x % 32 < kAcross) scratch[warp][piece.column + k] = down[k];
    }
  }
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i < kTile) {
    unsigned most = 0;
    for (const auto& of_warp : scratch) most = max(most, of_warp[square ? 0 : i]);
    scales.of_columns[i] = power_for(most);
    if (square) scales.of_rows[i] = scales.of_columns[i];
  }
  __syncthreads();
}

// What is multiplied with to get back, where cublasLt expects it.
__device__ void write_scales(Rows shape, bool square, int64_t first_row, int64_t first_column, const TileScales& scales,
                             const Fp8BlockArrays& to) {
  const int i = static_cast<int>(threadIdx.x);
  const int64_t tile_row = first_row / kTile, tile_column = first_column / kTile;
  if (square) {
    if (i != 0) return;
    to.row_scales[tile_row * to.row_line + tile_column] = 1.0F / scales.of_rows[0];
    to.column_scales[tile_column * to.column_line + tile_row] = 1.0F / scales.of_rows[0];
    return;
  }
  if (i >= kTile) return;
  if (first_row + i < shape.rows) to.row_scales[tile_column * shape.rows + first_row + i] = 1.0F / scales.of_rows[i];
  if (first_column + i < shape.width) {
    to.column_scales[tile_row * shape.width + first_column + i] = 1.0F / scales.of_columns[i];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 3) quantise_blocks(Rows shape, const T* x, bool square, Fp8BlockArrays to) {
  __shared__ uint32_t tile[kTile * kWords];
  __shared__ unsigned scratch[kWarps][kTile];
  __shared__ TileScales scales;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTile;
  const Piece<T> piece(shape, x, first_row, first_column);
  find_scales(piece, square, scratch, scales);
  write_scales(shape, square, first_row, first_column, scales, to);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int line = Piece<T>::line_of(turn);
    uint32_t words[2][kLines];  // words of the transposed matrix; [half of the columns]
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      float values[kVector];
      unpack<T>(piece.raw[turn][i], values);
      uint32_t row_words[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* const four = values + 4 * half;
        const float* const by = scales.of_columns + piece.column + 4 * half;
        row_words[half] = narrowed_by(four, scales.of_rows[line + i], __NV_E4M3);
        words[half][i] = narrowed(four[0], four[1], by[0], by[1], __NV_E4M3) |
                         narrowed(four[2], four[3], by[2], by[3], __NV_E4M3) << 16;
      }
      const int64_t row = first_row + line + i, column = first_column + piece.column;
      if (row >= shape.rows || column >= shape.width) continue;
      auto* const out = static_cast<uint8_t*>(to.rows) + row * shape.width + column;
      *reinterpret_cast<Vector<uint32_t, 2>*>(out) = {row_words[0], row_words[1]};
    }
    keep_columns(words, piece.column, line / kLines, tile);
  }
  __syncthreads();
  write_columns(shape, first_row, first_column, tile, static_cast<uint8_t*>(to.columns));
}

}  // namespace

void fp8_quantise_blocks(Where where, Rows shape, const void* x, bool square, const Fp8BlockArrays& to) {
  const dim3 blocks(grid(shape.width, kTile), grid(shape.rows, kTile));
  visit_short(where.type, [&]<class T>(T) {
    quantise_blocks<<<blocks, kThreads, 0, where.stream>>>(shape, static_cast<const T*>(x), square, to);
  });
  check_launch("fp8_quantise_blocks");
}

}  // namespace concord::cuda::torch_side
