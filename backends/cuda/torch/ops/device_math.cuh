// Helpers of the kernels: types, vectors of elements, sums over threads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "backends/cuda/torch/ops/kernels.h"

namespace concord::cuda::torch_side {

template <class T>
using SumOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

// |N| elements that are read or written by one instruction; N is 1 if rows do not begin at a multiple of N.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
};

// Number of elements in 16 bytes.
template <class T>
constexpr int kWide = 16 / static_cast<int>(sizeof(T));

inline bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <class T>
bool goes_wide(int64_t width, std::initializer_list<const void*> pointers) {
  return width % kWide<T> == 0 && std::all_of(pointers.begin(), pointers.end(), is_aligned);
}

// Calls body.operator()<T>() for the type of |type|.
template <class Body>
void visit(Type type, const Body& body) {
  switch (type) {
    case Type::f32: return body(float{});
    case Type::f64: return body(double{});
    case Type::bf16: return body(__nv_bfloat16{});
    case Type::f16: return body(__half{});
  }
}

// Like visit(), but with the number of elements per vector: visit_wide<T>(is_wide, [&](auto n) { ... n.value ... }).
template <class T, class Body>
void visit_wide(bool wide, const Body& body) {
  if (wide) return body(std::integral_constant<int, kWide<T>>{});
  body(std::integral_constant<int, 1>{});
}

inline unsigned grid(int64_t items, int64_t per_block, int64_t most = 0x7fffffff) {
  return static_cast<unsigned>(std::min((items + per_block - 1) / per_block, most));
}

inline void check_launch(const char* kernel) {
  if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) {
    throw std::runtime_error(std::string("launching the kernel ") + kernel + " failed: " + cudaGetErrorString(code));
  }
}

// Reduces over the |kThreads| threads that share a row; all of them get the result. The threads of a row are half a
// warp, a warp, or the whole block; for a block |shared| has one value per warp. |kIsFree|: no thread still reads
// |shared| from an earlier call.
template <int kThreads, bool kIsFree = false, class S, class Combine>
__device__ S over_row(S value, S* shared, const Combine& combine) {
  const unsigned lanes = kThreads == 16 ? 0xffffu << (threadIdx.x & 16) : ~0u;
#pragma unroll
  for (int lane = kThreads == 16 ? 8 : 16; lane > 0; lane /= 2) {
    value = combine(value, __shfl_xor_sync(lanes, value, lane));
  }
  if constexpr (kThreads <= 32) return value;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if constexpr (!kIsFree) __syncthreads();
  if (threadIdx.x % 32 == 0) shared[warp] = value;
  __syncthreads();
  value = shared[0];
  for (int i = 1; i < kThreads / 32; ++i) value = combine(value, shared[i]);
  return value;
}

struct Plus {
  template <class S>
  __device__ S operator()(S a, S b) const {
    return a + b;
  }
};

// Sums the lines of |scratch|. A block sums 32 neighbouring columns: a warp reads them together, and each warp of the
// block sums a part of the lines.
constexpr int kSumColumns = 32, kSumLines = 32;
template <class T>
__global__ void add_up(int64_t lines, int64_t width, const SumOf<T>* scratch, T* sums) {
  using S = SumOf<T>;
  __shared__ S shared[kSumLines][kSumColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSumColumns + threadIdx.x;
  S sum = 0;
  if (column < width) {
    for (int64_t line = threadIdx.y; line < lines; line += kSumLines) sum += scratch[line * width + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int i = 1; i < kSumLines; ++i) sum += shared[i][threadIdx.x];
  sums[column] = static_cast<T>(sum);
}

template <class T>
void add_up_lines(cudaStream_t stream, int64_t lines, int64_t width, const SumOf<T>* scratch, T* sums) {
  add_up<T><<<grid(width, kSumColumns), dim3(kSumColumns, kSumLines), 0, stream>>>(lines, width, scratch, sums);
}

}  // namespace concord::cuda::torch_side
