#include <cmath>

#include "backends/cuda/torch/ops/attention/attention_kernels.h"
#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/device_math.cuh"

namespace concord::cuda::torch_side {
namespace {

constexpr int kWarps = 8;       // of a block
constexpr int64_t kSpan = 128;  // keys of a block
constexpr int kTogether = 4;    // keys that a warp reads at once
constexpr int kMaxHeads = 8;    // query heads of a block, which share a key head
constexpr int kMaxSize = 256;   // of a head

// [several elements at once]
const Choice kReads[2] = {{"cached_attention: one element", kAllTypes}, {"cached_attention: vectors", kAllTypes}};

int64_t spans_of(const CachedHeads& shape) { return (shape.keys + kSpan - 1) / kSpan; }

// The keys that row |row| sees.
struct Seen {
  int64_t begin, end;
};
__device__ Seen seen_by(const CachedHeads& shape, const int64_t* lengths, int64_t row) {
  const int64_t end = lengths[row];
  return {shape.window > 0 && end > shape.window ? end - shape.window : 0, end};
}

// E consecutive elements of a head, starting at |at|; the head ends after |left| of them.
template <class T, int E>
__device__ void read(const T* at, int64_t left, bool wide, SumOf<T> (&to)[E]) {
  using S = SumOf<T>;
  if (wide) {
    Vector<T, E> v{};
    if (left > 0) v = *reinterpret_cast<const Vector<T, E>*>(at);
#pragma unroll
    for (int e = 0; e < E; ++e) to[e] = static_cast<S>(v.at[e]);
  } else {
#pragma unroll
    for (int e = 0; e < E; ++e) to[e] = e < left ? static_cast<S>(at[e]) : S(0);
  }
}

// The softmax of some keys for G queries, not normalised. Each query has the largest score, the sum of
// exp(score - largest), and a lane's E elements of the weighted sum of values.
template <class S, int G, int E>
struct Weighed {
  S largest[G], sum[G], values[G][E];
};

// A warp's share of the keys lo .. hi. Lane i has elements i E to i E + E of each head.
template <class T, int G, int E>
__device__ Weighed<SumOf<T>, G, E> weigh(const CachedHeads& shape, const T* q, const T* k, const T* v, int64_t lo,
                                         int64_t hi, int queries, bool wide) {
  using S = SumOf<T>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t first = lane * E, left = shape.size - first;
  S query[G][E];
  Weighed<S, G, E> mine;
#pragma unroll
  for (int g = 0; g < G; ++g) {
    read<T, E>(q + g * shape.q.stride[2] + first, g < queries ? left : 0, wide, query[g]);
    mine.largest[g] = -static_cast<S>(INFINITY);
    mine.sum[g] = 0;
#pragma unroll
    for (int e = 0; e < E; ++e) mine.values[g][e] = 0;
  }
  for (int64_t key = lo + warp * kTogether; key < hi; key += kWarps * kTogether) {
    S keys[kTogether][E], values[kTogether][E], scores[kTogether][G];
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {  // what is behind hi is not read
      const int64_t there = key + t < hi ? left : 0;
      read<T, E>(k + (key + t) * shape.k.stride[1] + first, there, wide, keys[t]);
      read<T, E>(v + (key + t) * shape.v.stride[1] + first, there, wide, values[t]);
    }
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
#pragma unroll
      for (int g = 0; g < G; ++g) {
        S dot = 0;
#pragma unroll
        for (int e = 0; e < E; ++e) dot += query[g][e] * keys[t][e];
        for (int other = 16; other > 0; other /= 2) dot += __shfl_xor_sync(~0u, dot, other);
        dot *= static_cast<S>(shape.scale);
        if (shape.cap > 0) dot = tanh(dot / static_cast<S>(shape.cap)) * static_cast<S>(shape.cap);
        scores[t][g] = key + t < hi ? dot : -static_cast<S>(INFINITY);
      }
    }
#pragma unroll
    for (int g = 0; g < G; ++g) {
      S top = mine.largest[g];
#pragma unroll
      for (int t = 0; t < kTogether; ++t) top = max(top, scores[t][g]);
      const S shrink = exp(mine.largest[g] - top);
      mine.largest[g] = top;
      mine.sum[g] *= shrink;
#pragma unroll
      for (int e = 0; e < E; ++e) mine.values[g][e] *= shrink;
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const S p = exp(scores[t][g] - top);
        mine.sum[g] += p;
#pragma unroll
        for (int e = 0; e < E; ++e) mine.values[g][e] += p * values[t][e];
      }
    }
  }
  return mine;
}

// One block for a span of a row's keys, and for up to G of the query heads that share a key head. Leaves in |tops|
// [rows, heads, spans, 2] the largest score and the sum, in |sums| [rows, heads, spans, size] the weighed values.
// Spans that the row does not see leave nothing.
template <class T, int G, int E>
__global__ void __launch_bounds__(kWarps * 32)
    attend_to_span(CachedHeads shape, const int64_t* lengths, bool wide, SumOf<T>* tops, SumOf<T>* sums) {
  using S = SumOf<T>;
  __shared__ S largest[kWarps][G], total[kWarps][G], values[kWarps][32 * E];
  const int64_t row = blockIdx.z, span = blockIdx.x, spans = gridDim.x, shared_by = shape.heads / shape.kv_heads;
  const int64_t parts = (shared_by + G - 1) / G, kv_head = blockIdx.y / parts, part = blockIdx.y % parts;
  const int64_t head = kv_head * shared_by + part * G;
  const int queries = static_cast<int>(min(static_cast<int64_t>(G), shared_by - part * G));
  const Seen seen = seen_by(shape, lengths, row);
  const int64_t lo = max(span * kSpan, seen.begin), hi = min((span + 1) * kSpan, seen.end);
  if (lo >= hi) return;
  const auto at = [&](const HeadsFrom& from, int64_t of) {
    return static_cast<const T*>(from.x) + row * from.stride[0] + of * from.stride[2];
  };
  const Weighed<S, G, E> mine =
      weigh<T, G, E>(shape, at(shape.q, head), at(shape.k, kv_head), at(shape.v, kv_head), lo, hi, queries, wide);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int g = 0; g < G; ++g) {
    if (lane == 0) {
      largest[warp][g] = mine.largest[g];
      total[warp][g] = mine.sum[g];
    }
  }
  __syncthreads();
#pragma unroll
  for (int g = 0; g < G; ++g) {
    if (g >= queries) break;  // for all threads
    S top = largest[0][g], sum = 0;
    for (int w = 1; w < kWarps; ++w) top = max(top, largest[w][g]);
    for (int w = 0; w < kWarps; ++w) sum += total[w][g] * exp(largest[w][g] - top);
    const S shrink = exp(mine.largest[g] - top);
#pragma unroll
    for (int e = 0; e < E; ++e) values[warp][lane * E + e] = mine.values[g][e] * shrink;
    __syncthreads();
    const int64_t place = (row * shape.heads + head + g) * spans + span;
    for (int i = static_cast<int>(threadIdx.x); i < shape.size; i += kWarps * 32) {
      S all = 0;
      for (int w = 0; w < kWarps; ++w) all += values[w][i];
      sums[place * shape.size + i] = all;
    }
    if (threadIdx.x == 0) {
      tops[place * 2] = top;
      tops[place * 2 + 1] = sum;
    }
    __syncthreads();
  }
}

struct Larger {
  template <class S>
  __device__ S operator()(S a, S b) const {
    return max(a, b);
  }
};

// One block for a head of a row: the spans together. Each warp adds up some of them, lane i its elements i, i + 32, ...
template <class T>
__global__ void __launch_bounds__(kWarps * 32)
    merge_spans(CachedHeads shape, const int64_t* lengths, int64_t spans, const SumOf<T>* sinks, const SumOf<T>* tops,
                const SumOf<T>* sums, T* out) {
  using S = SumOf<T>;
  constexpr int kThreads = kWarps * 32, kElements = kMaxSize / 32;
  __shared__ S shared[kWarps], values[kWarps][kMaxSize];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int64_t row = blockIdx.y, head = blockIdx.x, place = row * shape.heads + head;
  const Seen seen = seen_by(shape, lengths, row);
  const int64_t first = seen.begin / kSpan, last = (seen.end - 1) / kSpan;
  const S* const own = tops + place * spans * 2;
  S top = sinks != nullptr ? sinks[head] : -static_cast<S>(INFINITY);
  for (int64_t i = first + thread; i <= last; i += kThreads) top = max(top, own[2 * i]);
  top = over_row<kThreads>(top, shared, Larger());
  S total = 0;
  for (int64_t i = first + thread; i <= last; i += kThreads) total += own[2 * i + 1] * exp(own[2 * i] - top);
  total = over_row<kThreads>(total, shared, Plus());
  if (sinks != nullptr) total += exp(sinks[head] - top);
  S mine[kElements] = {};
  for (int64_t i = first + warp; i <= last; i += kWarps) {
    const S weight = exp(own[2 * i] - top);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int j = lane + 32 * e;
      if (j < shape.size) mine[e] += weight * sums[(place * spans + i) * shape.size + j];
    }
  }
#pragma unroll
  for (int e = 0; e < kElements; ++e) values[warp][lane + 32 * e] = mine[e];
  __syncthreads();
  for (int j = thread; j < shape.size; j += kThreads) {
    S sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += values[w][j];
    out[place * shape.size + j] = static_cast<T>(sum / total);
  }
}

// Whether heads of all three can be read E elements at a time.
template <class T, int E>
bool reads_wide(const CachedHeads& shape) {
  const auto fits = [](const HeadsFrom& from) {
    return reinterpret_cast<uintptr_t>(from.x) % sizeof(Vector<T, E>) == 0 &&
           std::all_of(from.stride, from.stride + 3, [](int64_t stride) { return stride % E == 0; });
  };
  return shape.size % E == 0 && fits(shape.q) && fits(shape.k) && fits(shape.v);
}

template <class T, int G, int E>
void launch_spans(Where where, const CachedHeads& shape, const int64_t* lengths, SumOf<T>* tops, SumOf<T>* sums) {
  const bool wide = reads_wide<T, E>(shape);
  kReads[wide].take(where.type);
  const int64_t parts = (shape.heads / shape.kv_heads + G - 1) / G;
  const dim3 blocks(static_cast<unsigned>(spans_of(shape)), static_cast<unsigned>(shape.kv_heads * parts),
                    static_cast<unsigned>(shape.rows));
  attend_to_span<T, G, E><<<blocks, kWarps * 32, 0, where.stream>>>(shape, lengths, wide, tops, sums);
}

template <class T, int E>
void visit_heads(Where where, const CachedHeads& shape, const int64_t* lengths, SumOf<T>* tops, SumOf<T>* sums) {
  const int64_t shared_by = shape.heads / shape.kv_heads;
  if (shared_by == 1) return launch_spans<T, 1, E>(where, shape, lengths, tops, sums);
  if (shared_by <= 4) return launch_spans<T, 4, E>(where, shape, lengths, tops, sums);
  launch_spans<T, kMaxHeads, E>(where, shape, lengths, tops, sums);
}

template <class T>
void visit_sizes(Where where, const CachedHeads& shape, const int64_t* lengths, SumOf<T>* tops, SumOf<T>* sums) {
  if (shape.size <= 64) return visit_heads<T, 2>(where, shape, lengths, tops, sums);
  if (shape.size <= 128) return visit_heads<T, 4>(where, shape, lengths, tops, sums);
  visit_heads<T, 8>(where, shape, lengths, tops, sums);
}

}  // namespace

bool cached_attention_fits(const CachedHeads& shape) {
  constexpr int64_t kMaxBlocks = 65535;  // limit of the second and third dim of a grid
  return shape.size <= kMaxSize && shape.rows <= kMaxBlocks && shape.heads <= kMaxBlocks;
}

int64_t cached_attention_scratch(const CachedHeads& shape) {
  return shape.rows * shape.heads * spans_of(shape) * (shape.size + 2);
}

void cached_attention(Where where, const CachedHeads& shape, const int64_t* lengths, const void* sinks, void* scratch,
                      void* out) {
  const int64_t spans = spans_of(shape);
  visit(where.type, [&]<class T>(T) {
    using S = SumOf<T>;
    S* const tops = static_cast<S*>(scratch);
    S* const sums = tops + shape.rows * shape.heads * spans * 2;
    visit_sizes<T>(where, shape, lengths, tops, sums);
    const dim3 blocks(static_cast<unsigned>(shape.heads), static_cast<unsigned>(shape.rows));
    merge_spans<T><<<blocks, kWarps * 32, 0, where.stream>>>(shape, lengths, spans, static_cast<const S*>(sinks), tops,
                                                             sums, static_cast<T*>(out));
  });
  check_launch("cached_attention");
}

}  // namespace concord::cuda::torch_side
