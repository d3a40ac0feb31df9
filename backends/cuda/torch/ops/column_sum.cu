#include "backends/cuda/torch/ops/device_math.cuh"

namespace concord::cuda::torch_side {
namespace {

constexpr int kLanes = 32, kWarps = 8;
constexpr int64_t kRowsPerBlock = 128;

// A warp reads 32 neighbouring vectors of a row; each warp of the block takes every eighth row of the block's share and
// adds to sums of its own. The block's sums are one line of |scratch|.
template <class T, int N>
__global__ void sum_share(Rows shape, const T* x, SumOf<T>* scratch) {
  using S = SumOf<T>;
  __shared__ S shared[kWarps][kLanes * N];
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x) * N;
  const int64_t begin = blockIdx.y * kRowsPerBlock, end = min(begin + kRowsPerBlock, shape.rows);
  S sums[N] = {};
  if (column < shape.width) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kWarps) {
      const Vector<T, N> v = *reinterpret_cast<const Vector<T, N>*>(x + row * shape.width + column);
#pragma unroll
      for (int k = 0; k < N; ++k) sums[k] += static_cast<S>(v.at[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < N; ++k) shared[threadIdx.y][threadIdx.x * N + k] = sums[k];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y * kLanes + threadIdx.x); i < kLanes * N; i += kLanes * kWarps) {
    const int64_t own = static_cast<int64_t>(blockIdx.x) * kLanes * N + i;
    if (own >= shape.width) return;
    S sum = shared[0][i];
    for (int warp = 1; warp < kWarps; ++warp) sum += shared[warp][i];
    scratch[blockIdx.y * shape.width + own] = sum;
  }
}

}  // namespace

int64_t column_sum_lines(Rows shape) { return (shape.rows + kRowsPerBlock - 1) / kRowsPerBlock; }

void column_sum(Where where, Rows shape, const void* x, void* scratch, void* sums) {
  const int64_t lines = column_sum_lines(shape);
  visit(where.type, [&]<class T>(T) {
    auto* const partial = static_cast<SumOf<T>*>(scratch);
    visit_wide<T>(goes_wide<T>(shape.width, {x}), [&](auto n) {
      if (lines == 0) return;
      const dim3 blocks(grid(shape.width, kLanes * n.value), static_cast<unsigned>(lines));
      sum_share<T, n.value>
          <<<blocks, dim3(kLanes, kWarps), 0, where.stream>>>(shape, static_cast<const T*>(x), partial);
    });
    add_up_lines<T>(where.stream, lines, shape.width, partial, static_cast<T*>(sums));
  });
  check_launch("column_sum");
}

}  // namespace concord::cuda::torch_side
