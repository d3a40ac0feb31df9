#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/device_math.cuh"
#include "backends/cuda/torch/ops/moe/moe_kernels.h"

namespace concord::cuda::torch_side {
namespace {

constexpr int kWarps = 8;  // warps per block; a warp processes a row

// [several elements at once]
const Choice kRows[2] = {{"moe_permute: one element", kAllTypes}, {"moe_permute: vectors", kAllTypes}};

__device__ int64_t row_of_warp() { return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; }

// A warp reads the row of a token once and writes it to all of its places.
template <class T, int N>
__global__ void permute(MoeRows shape, const T* x, const int64_t* inverse, T* y) {
  const int64_t token = row_of_warp();
  if (token >= shape.tokens) return;
  const int64_t vectors = shape.width / N;
  const auto* const from = reinterpret_cast<const Vector<T, N>*>(x) + token * vectors;
  auto* const to = reinterpret_cast<Vector<T, N>*>(y);
  for (int64_t i = threadIdx.x % 32; i < vectors; i += 32) {
    const Vector<T, N> value = from[i];
    for (int64_t j = token * shape.k; j < (token + 1) * shape.k; ++j) to[inverse[j] * vectors + i] = value;
  }
}

// The choices of a token one after the other, as the reference adds them.
template <class T, int N>
__global__ void combine(MoeRows shape, const T* rows, const SumOf<T>* weights, const int64_t* inverse, T* y) {
  using S = SumOf<T>;
  const int64_t token = row_of_warp();
  if (token >= shape.tokens) return;
  const int64_t vectors = shape.width / N;
  const auto* const from = reinterpret_cast<const Vector<T, N>*>(rows);
  for (int64_t i = threadIdx.x % 32; i < vectors; i += 32) {
    S sum[N] = {};
    for (int64_t j = token * shape.k; j < (token + 1) * shape.k; ++j) {
      const Vector<T, N> part = from[inverse[j] * vectors + i];
      const S weight = weights == nullptr ? S(1) : weights[j];
      for (int n = 0; n < N; ++n) sum[n] += static_cast<S>(part.at[n]) * weight;
    }
    Vector<T, N> result;
    for (int n = 0; n < N; ++n) result.at[n] = static_cast<T>(sum[n]);
    reinterpret_cast<Vector<T, N>*>(y)[token * vectors + i] = result;
  }
}

// A warp takes the rows of a token in turn: the token's gradient comes from memory once.
template <class T, int N>
__global__ void combine_backward(MoeRows shape, const T* grad, const T* rows, const SumOf<T>* weights,
                                 const int64_t* inverse, T* drows, SumOf<T>* dweights) {
  using S = SumOf<T>;
  const int64_t token = row_of_warp();
  if (token >= shape.tokens) return;
  const int64_t vectors = shape.width / N;
  const auto* const back = reinterpret_cast<const Vector<T, N>*>(grad) + token * vectors;
  for (int64_t j = token * shape.k; j < (token + 1) * shape.k; ++j) {
    const int64_t place = inverse[j];
    const S weight = weights[j];
    const auto* const in = reinterpret_cast<const Vector<T, N>*>(rows) + place * vectors;
    auto* const out = reinterpret_cast<Vector<T, N>*>(drows) + place * vectors;
    S dot = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x % 32; i < vectors; i += 32) {
      const Vector<T, N> g = back[i], r = in[i];
      Vector<T, N> result;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        dot += static_cast<S>(g.at[n]) * static_cast<S>(r.at[n]);
        result.at[n] = static_cast<T>(static_cast<S>(g.at[n]) * weight);
      }
      out[i] = result;
    }
    dot = over_row<32>(dot, static_cast<S*>(nullptr), Plus{});
    if (threadIdx.x % 32 == 0) dweights[j] = dot;
  }
}

// ------------------------------------------------------------------------------------------------------------- order

// A stable counting sort. Every warp, which is a block, processes kChunk rows, 32 at a time.
constexpr int kChunk = 512;

int64_t chunks_of(int64_t rows) { return (rows + kChunk - 1) / kChunk; }

// Returns a bit mask of the warp's 32 rows that are sent to the same expert as this thread's row.
__device__ unsigned same_expert(int64_t expert) { return __match_any_sync(~0u, static_cast<long long>(expert)); }

// counts [experts, chunks]
__global__ void count_rows(int64_t rows, int64_t experts, const int64_t* chosen, int* counts) {
  extern __shared__ int own[];  // [experts]
  for (int64_t e = threadIdx.x; e < experts; e += 32) own[e] = 0;
  __syncwarp();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kChunk;
  for (int64_t i = begin + threadIdx.x; i < begin + kChunk; i += 32) {
    const int64_t expert = i < rows ? chosen[i] : -1;
    const unsigned same = same_expert(expert);
    if (expert >= 0 && __ffs(same) - 1 == static_cast<int>(threadIdx.x)) own[expert] += __popc(same);
    __syncwarp();
  }
  for (int64_t e = threadIdx.x; e < experts; e += 32) counts[e * gridDim.x + blockIdx.x] = own[e];
}

// Replaces counts by the sums of those before, expert by expert and chunk by chunk: the first place of each. One block.
__global__ void sum_counts(int64_t experts, int64_t chunks, int* counts, int64_t* ends) {
  extern __shared__ int totals[];  // [experts]
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t warps = blockDim.x / 32, warp = threadIdx.x / 32;
  for (int64_t e = warp; e < experts; e += warps) {
    int before = 0;
    for (int64_t c = 0; c < chunks; c += 32) {
      const int own = c + lane < chunks ? counts[e * chunks + c + lane] : 0;
      int sum = own;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
      }
      if (c + lane < chunks) counts[e * chunks + c + lane] = before + sum - own;
      before += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) totals[e] = before;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int64_t end = 0;
    for (int64_t e = 0; e < experts; ++e) {
      end += totals[e];
      ends[e] = end;
    }
  }
}

__global__ void place_rows(int64_t rows, int64_t experts, const int64_t* chosen, const int* counts, const int64_t* ends,
                           int64_t* order, int64_t* inverse) {
  extern __shared__ int next[];  // [experts]: the place of the next row of each
  for (int64_t e = threadIdx.x; e < experts; e += 32) {
    next[e] = counts[e * gridDim.x + blockIdx.x] + (e == 0 ? 0 : static_cast<int>(ends[e - 1]));
  }
  __syncwarp();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kChunk;
  for (int64_t i = begin + threadIdx.x; i < begin + kChunk; i += 32) {
    const int64_t expert = i < rows ? chosen[i] : -1;
    const unsigned same = same_expert(expert);
    const int before = __popc(same & ((1u << threadIdx.x) - 1));
    const int first = expert >= 0 ? next[expert] : 0;
    __syncwarp();
    if (expert >= 0) {
      order[first + before] = i;
      inverse[i] = first + before;
      if (before == 0) next[expert] = first + __popc(same);
    }
    __syncwarp();
  }
}

template <class T, class Launch>
void launch_rows(int64_t rows, const MoeRows& shape, Type type, std::initializer_list<const void*> pointers,
                 const char* name, const Launch& launch) {
  if (rows * shape.width == 0) return;
  visit_wide<T>(goes_wide<T>(shape.width, pointers), [&](auto n) {
    kRows[n.value > 1].take(type);
    launch(n, grid(rows, kWarps));
  });
  check_launch(name);
}

}  // namespace

void moe_permute(Where where, const MoeRows& shape, const void* x, const int64_t* inverse, void* y) {
  visit(where.type, [&]<class T>(T) {
    launch_rows<T>(shape.tokens, shape, where.type, {x, y}, "moe_permute", [&](auto n, unsigned blocks) {
      permute<T, n.value>
          <<<blocks, 32 * kWarps, 0, where.stream>>>(shape, static_cast<const T*>(x), inverse, static_cast<T*>(y));
    });
  });
}

void moe_combine(Where where, const MoeRows& shape, const void* rows, const void* weights, const int64_t* inverse,
                 void* y) {
  visit(where.type, [&]<class T>(T) {
    launch_rows<T>(shape.tokens, shape, where.type, {rows, y}, "moe_combine", [&](auto n, unsigned blocks) {
      combine<T, n.value><<<blocks, 32 * kWarps, 0, where.stream>>>(
          shape, static_cast<const T*>(rows), static_cast<const SumOf<T>*>(weights), inverse, static_cast<T*>(y));
    });
  });
}

void moe_combine_backward(Where where, const MoeRows& shape, const void* grad, const void* rows, const void* weights,
                          const int64_t* inverse, void* drows, void* dweights) {
  visit(where.type, [&]<class T>(T) {
    using S = SumOf<T>;
    launch_rows<T>(shape.tokens, shape, where.type, {grad, rows, drows}, "moe_combine_backward",
                   [&](auto n, unsigned blocks) {
                     combine_backward<T, n.value><<<blocks, 32 * kWarps, 0, where.stream>>>(
                         shape, static_cast<const T*>(grad), static_cast<const T*>(rows),
                         static_cast<const S*>(weights), inverse, static_cast<T*>(drows), static_cast<S*>(dweights));
                   });
  });
}

bool moe_order_fits(int64_t rows, int64_t experts) {
  constexpr int64_t kMaxExperts = 4096;  // 16 KiB of counters
  constexpr int64_t kMaxRows = 0x7fffffff;
  return rows > 0 && rows <= kMaxRows && experts <= kMaxExperts;
}

int64_t moe_order_scratch(int64_t rows, int64_t experts) { return experts * chunks_of(rows); }

void moe_order(cudaStream_t stream, int64_t rows, int64_t experts, const int64_t* chosen, int* scratch, int64_t* order,
               int64_t* inverse, int64_t* ends) {
  const auto chunks = static_cast<unsigned>(chunks_of(rows));
  const size_t counters = static_cast<size_t>(experts) * sizeof(int);
  count_rows<<<chunks, 32, counters, stream>>>(rows, experts, chosen, scratch);
  sum_counts<<<1, 1024, counters, stream>>>(experts, chunks, scratch, ends);
  place_rows<<<chunks, 32, counters, stream>>>(rows, experts, chosen, scratch, ends, order, inverse);
  check_launch("moe_order");
}

}  // namespace concord::cuda::torch_side
