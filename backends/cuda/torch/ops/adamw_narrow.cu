// AdamW with narrow state: moments in bf16 or in blocks of 8-bit codes, weights with a remainder. One pass that reads
// and writes each element once. A warp updates 256 elements at a time, which are a block of codes: their scale is a
// maximum over the warp. Bits are as if all state were widened to fp32, updated by the fp32 kernel and rounded
// (core/ops/optimizer/adamw.cpp).
#include <algorithm>
#include <vector>

#include "backends/cuda/torch/ops/device_math.cuh"
#include "backends/cuda/torch/ops/divisor.hpp"
#include "platform/base/code_buckets.hpp"

namespace concord::cuda::torch_side {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kAtOnce = 4;               // elements per load: 16 bytes of fp32, 4 bytes of codes
constexpr int kPiece = kWarp * kAtOnce;  // neighbours that a warp reads together
constexpr int kTile = 256, kPieces = kTile / kPiece;
constexpr int kMine = kAtOnce * kPieces;  // elements of a tile per thread
constexpr int kParts = 40;                // per launch: its arguments must stay below 4 KiB
constexpr float kMinScale = 1e-12f;       // like kMinScale in block_codes.cpp

struct Code {};  // type of the elements of a moment in 8-bit codes

struct Part {
  NarrowAdamWArrays arrays;
  int64_t end_tile;  // first tile after this part
  bool is_aligned;   // whether vectors can be loaded
};
struct Parts {
  Part at[kParts];
};

struct Table {
  float fractions[codes::kCount];
  uint32_t positive[codes::kBuckets];
};
struct Tables {
  Table m, v;
  uint32_t m_negative[codes::kBuckets];  // v has no negative elements
};

__device__ void fill_entries(const float* thresholds, bool negative, uint32_t* entries) {
#pragma unroll 4  // searches wait for memory
  for (int i = threadIdx.x; i < codes::kBuckets; i += kThreads)
    entries[i] = codes::bucket_entry(thresholds, i, negative);
}

// ----------------------------------------------------------------------------------------------- loading and storing

// Elements i .. i + 3 of an array of |count|; those after its end are 0. |whole|: the array has them, and is aligned.
template <bool whole, class T, class S>
__device__ void load(const T* from, int64_t i, int64_t count, S* to) {
  if constexpr (whole) {
    const Vector<T, kAtOnce> loaded = *reinterpret_cast<const Vector<T, kAtOnce>*>(from + i);
    for (int k = 0; k < kAtOnce; ++k) to[k] = static_cast<S>(loaded.at[k]);
  } else {
    for (int k = 0; k < kAtOnce; ++k) to[k] = i + k < count ? static_cast<S>(from[i + k]) : S{};
  }
}

template <bool whole, class T, class S>
__device__ void store(T* to, int64_t i, int64_t count, const S* from) {
  if constexpr (whole) {
    Vector<T, kAtOnce> rounded;
    for (int k = 0; k < kAtOnce; ++k) rounded.at[k] = static_cast<T>(from[k]);
    *reinterpret_cast<Vector<T, kAtOnce>*>(to + i) = rounded;
  } else {
    for (int k = 0; k < kAtOnce; ++k) {
      if (i + k < count) to[i + k] = static_cast<T>(from[k]);
    }
  }
}

template <bool whole>
__device__ void load_grads(const NarrowAdamWArrays& a, int64_t i, float* to) {
  if (a.grads_type == Type::f32) {
    load<whole>(static_cast<const float*>(a.grads), i, a.count, to);
  } else if (a.grads_type == Type::bf16) {
    load<whole>(static_cast<const __nv_bfloat16*>(a.grads), i, a.count, to);
  } else {
    load<whole>(static_cast<const __half*>(a.grads), i, a.count, to);
  }
}

// With a remainder the bits of an fp32 number are 2^16 times those of the bf16 number, plus the remainder.
template <bool whole>
__device__ void load_weights(const NarrowAdamWArrays& a, int64_t i, float* to) {
  if (!a.has_remainder) return load<whole>(static_cast<const float*>(a.weights), i, a.count, to);
  int low[kAtOnce], high[kAtOnce];
  load<whole>(static_cast<const int16_t*>(a.weights), i, a.count, low);
  load<whole>(static_cast<const uint16_t*>(a.values), i, a.count, high);
  for (int k = 0; k < kAtOnce; ++k)
    to[k] = __int_as_float(static_cast<int>(static_cast<unsigned>(high[k]) << 16) + low[k]);
}

// The inverse. A NaN whose upper half would become the bits of -0 becomes another NaN.
template <bool whole>
__device__ void split_weights(const NarrowAdamWArrays& a, int64_t i, const float* from) {
  constexpr int kMostBits = 0x7fff7fff;
  int low[kAtOnce], high[kAtOnce];
  for (int k = 0; k < kAtOnce; ++k) {
    const int bits = min(__float_as_int(from[k]), kMostBits);
    low[k] = static_cast<int16_t>(bits);
    high[k] = (bits >> 16) + (low[k] < 0 ? 1 : 0);
  }
  store<whole>(static_cast<int16_t*>(a.weights), i, a.count, low);
  store<whole>(static_cast<uint16_t*>(a.values), i, a.count, high);
}

template <bool whole>
__device__ void store_weights(const NarrowAdamWArrays& a, int64_t i, const float* from) {
  if (a.has_remainder) return split_weights<whole>(a, i, from);
  store<whole>(static_cast<float*>(a.weights), i, a.count, from);
  if (a.values == nullptr) return;
  if (a.values_type == Type::bf16) {
    store<whole>(static_cast<__nv_bfloat16*>(a.values), i, a.count, from);
  } else {
    store<whole>(static_cast<__half*>(a.values), i, a.count, from);
  }
}

// ------------------------------------------------------------------------------------------------------------ moments

template <bool whole, class M>
__device__ void load_moment(const NarrowMoment& moment, const Table& table, int64_t tile, int lane, int64_t count,
                            float* to) {
  for (int piece = 0; piece < kPieces; ++piece) {
    const int64_t i = tile * kTile + piece * kPiece + lane * kAtOnce;
    float* const mine = to + piece * kAtOnce;
    if constexpr (std::is_same_v<M, Code>) {
      const float scale = moment.scales[tile];
      uint8_t codes[kAtOnce];
      if constexpr (whole) {
        const auto loaded =
            *reinterpret_cast<const Vector<uint8_t, kAtOnce>*>(static_cast<uint8_t*>(moment.values) + i);
        for (int k = 0; k < kAtOnce; ++k) codes[k] = loaded.at[k];
      } else {
        for (int k = 0; k < kAtOnce; ++k) codes[k] = static_cast<uint8_t*>(moment.values)[i + k];
      }
      for (int k = 0; k < kAtOnce; ++k) mine[k] = __fmul_rn(table.fractions[codes[k]], scale);
    } else {
      load<whole>(static_cast<const M*>(moment.values), i, count, mine);
    }
  }
}

// The largest magnitude of the tile; NaN if there is one: the bits of magnitudes have the order of their values, and
// NaNs are above all.
__device__ float scale_of(const float* mine) {
  uint32_t largest = __float_as_uint(kMinScale);
  for (int k = 0; k < kMine; ++k) largest = max(largest, __float_as_uint(fabsf(mine[k])));
  return __uint_as_float(__reduce_max_sync(~0u, largest));
}

// Sets the codes of this thread's elements of a tile, and the tile's scale.
template <bool has_negative>
__device__ void encode_tile(const NarrowMoment& moment, const Table& table, const uint32_t* negative, int64_t tile,
                            int lane, const float* from, uint32_t* codes) {
  const float largest = scale_of(from);
  const Divisor scale = {largest, __frcp_rn(largest)};
  if (lane == 0) moment.scales[tile] = largest;
  if (scale.is_in_range()) {
#pragma unroll
    for (int k = 0; k < kMine; ++k) {
      codes[k] = codes::by_bucket<has_negative>(table.positive, negative, scale.divide(from[k]));
    }
  } else {  // infinity or NaN may be among them
#pragma unroll
    for (int k = 0; k < kMine; ++k) {
      codes[k] = codes::by_bucket_or_nan<has_negative>(table.positive, negative, __fdiv_rn(from[k], largest));
    }
  }
}

template <bool whole, class T, class S>
__device__ void store_tile(void* to, int64_t tile, int lane, int64_t count, const S* from) {
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int64_t i = tile * kTile + piece * kPiece + lane * kAtOnce;
    store<whole>(static_cast<T*>(to), i, count, from + piece * kAtOnce);
  }
}

// ------------------------------------------------------------------------------------------------------------- update

// The operations of adamw.cu, in the same order: see there for the formula.
__device__ void update(const AdamWNumbers& n, float scale, const Divisor& correction, float grad, float& w, float& m,
                       float& v) {
  const float g = __fmul_rn(grad, scale);
  m = __fadd_rn(m, __fmul_rn(n.one_minus_beta1, __fsub_rn(g, m)));
  v = __fadd_rn(__fmul_rn(n.beta2, v), __fmul_rn(__fmul_rn(n.one_minus_beta2, g), g));
  const float root = __fsqrt_rn(v);
  const float quotient = isfinite(root) ? correction.divide(root) : root;  // the correction is positive, at most 1
  w = __fsub_rn(__fmul_rn(w, n.decay), __fmul_rn(n.step_size, __fdiv_rn(m, __fadd_rn(quotient, n.eps))));
}

template <bool whole, class M, class V>
__device__ void update_tile(const AdamWNumbers& n, float scale, const Divisor& correction, const Tables& tables,
                            const NarrowAdamWArrays& a, int64_t tile, int lane) {
  float g[kMine], w[kMine], m[kMine], v[kMine];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int64_t i = tile * kTile + piece * kPiece + lane * kAtOnce;
    load_grads<whole>(a, i, g + piece * kAtOnce);
    load_weights<whole>(a, i, w + piece * kAtOnce);
  }
  load_moment<whole, M>(a.m, tables.m, tile, lane, a.count, m);
  load_moment<whole, V>(a.v, tables.v, tile, lane, a.count, v);
#pragma unroll
  for (int k = 0; k < kMine; ++k) update(n, scale, correction, g[k], w[k], m[k], v[k]);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    store_weights<whole>(a, tile * kTile + piece * kPiece + lane * kAtOnce, w + piece * kAtOnce);
  }
  uint32_t codes[kMine];
  if constexpr (std::is_same_v<M, Code>) {
    encode_tile<true>(a.m, tables.m, tables.m_negative, tile, lane, m, codes);
    store_tile<whole, uint8_t>(a.m.values, tile, lane, a.count, codes);
  } else {
    store_tile<whole, M>(a.m.values, tile, lane, a.count, m);
  }
  if constexpr (std::is_same_v<V, Code>) {
    encode_tile<false>(a.v, tables.v, nullptr, tile, lane, v, codes);
    store_tile<whole, uint8_t>(a.v.values, tile, lane, a.count, codes);
  } else {
    store_tile<whole, V>(a.v.values, tile, lane, a.count, v);
  }
}

template <class M, class V>
__global__ void __launch_bounds__(kThreads, 4)
    update_narrow(AdamWNumbers numbers, const float* m_table, const float* v_table, __grid_constant__ const Parts parts,
                  int64_t tiles) {
  __shared__ Tables tables;
  const float scale = numbers.factor == nullptr ? numbers.grad_scale : *numbers.factor;
  if (numbers.factor != nullptr && !isfinite(scale)) return;
  if constexpr (std::is_same_v<M, Code>) {
    tables.m.fractions[threadIdx.x] = m_table[threadIdx.x];
    fill_entries(m_table + codes::kCount, false, tables.m.positive);
    fill_entries(m_table + codes::kCount, true, tables.m_negative);
  }
  if constexpr (std::is_same_v<V, Code>) {
    tables.v.fractions[threadIdx.x] = v_table[threadIdx.x];
    fill_entries(v_table + codes::kCount, false, tables.v.positive);
  }
  __syncthreads();
  const Divisor correction = {numbers.sqrt_bias_correction2, __frcp_rn(numbers.sqrt_bias_correction2)};
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  constexpr int kWarps = kThreads / kWarp;
  int p = 0;
  for (int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; tile < tiles;
       tile += static_cast<int64_t>(gridDim.x) * kWarps) {
    while (tile >= parts.at[p].end_tile) ++p;
    const Part& part = parts.at[p];
    const int64_t own = p == 0 ? tile : tile - parts.at[p - 1].end_tile;
    if (part.is_aligned && (own + 1) * kTile <= part.arrays.count) {
      update_tile<true, M, V>(numbers, scale, correction, tables, part.arrays, own, lane);
    } else {
      update_tile<false, M, V>(numbers, scale, correction, tables, part.arrays, own, lane);
    }
  }
}

// ------------------------------------------------------------------------------------------------------------- launch

int64_t bytes_of(Type type) { return type == Type::f32 ? 4 : 2; }

// Whether |next| is right after the |bytes| at |last|, or both are null.
bool follows(const void* next, const void* last, int64_t bytes) {
  if (next == nullptr || last == nullptr) return next == last;
  return next == static_cast<const char*>(last) + bytes;
}

template <class M>
bool follows(const NarrowMoment& next, const NarrowMoment& last, int64_t count) {
  const auto size = static_cast<int64_t>(sizeof(M));
  return follows(next.values, last.values, count * size) &&
         follows(next.scales, last.scales, count / kTile * static_cast<int64_t>(sizeof(float)));
}

// Whether |next| continues all arrays of |last|.
template <class M, class V>
bool follows(const NarrowAdamWArrays& next, const NarrowAdamWArrays& last) {
  return next.grads_type == last.grads_type && next.values_type == last.values_type &&
         follows(next.grads, last.grads, last.count * bytes_of(last.grads_type)) &&
         next.has_remainder == last.has_remainder &&
         follows(next.weights, last.weights, last.count * (last.has_remainder ? 2 : 4)) &&
         follows(next.values, last.values, last.count * bytes_of(last.values_type)) &&
         follows<M>(next.m, last.m, last.count) && follows<V>(next.v, last.v, last.count);
}

bool takes_vectors(const NarrowAdamWArrays& a) {
  return is_aligned(a.grads) && is_aligned(a.weights) && is_aligned(a.m.values) && is_aligned(a.v.values) &&
         is_aligned(a.values);
}

// Blocks stay for several tiles, since each computes its tables once.
template <class M, class V>
int64_t blocks_at_a_time() {
  int device = 0, processors = 0, blocks = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, update_narrow<M, V>, kThreads, 0);
  return std::max<int64_t>(1, static_cast<int64_t>(blocks) * processors);
}

template <class M, class V>
void step(cudaStream_t stream, const AdamWNumbers& numbers, const NarrowMoments& moments,
          std::span<const NarrowAdamWArrays> all) {
  std::vector<NarrowAdamWArrays> joined;
  for (const NarrowAdamWArrays& a : all) {
    if (a.count == 0) continue;
    if (!joined.empty() && follows<M, V>(a, joined.back())) {
      joined.back().count += a.count;
    } else {
      joined.push_back(a);
    }
  }
  const int64_t most = blocks_at_a_time<M, V>();
  for (size_t first = 0; first < joined.size(); first += kParts) {
    Parts parts = {};
    int64_t tiles = 0;
    for (size_t i = first; i < std::min(joined.size(), first + kParts); ++i) {
      tiles += (joined[i].count + kTile - 1) / kTile;
      parts.at[i - first] = {joined[i], tiles, takes_vectors(joined[i])};
    }
    update_narrow<M, V><<<grid(tiles, kThreads / kWarp, most), kThreads, 0, stream>>>(numbers, moments.m_table,
                                                                                      moments.v_table, parts, tiles);
  }
  check_launch("adamw_narrow");
}

template <class Body>
void visit_moment(MomentType type, const Body& body) {
  switch (type) {
    case MomentType::f32: return body(float{});
    case MomentType::bf16: return body(__nv_bfloat16{});
    case MomentType::codes: return body(Code{});
  }
}

}  // namespace

void adamw_narrow(cudaStream_t stream, const AdamWNumbers& numbers, const NarrowMoments& moments,
                  std::span<const NarrowAdamWArrays> arrays) {
  visit_moment(moments.m, [&]<class M>(M) {
    visit_moment(moments.v, [&]<class V>(V) { step<M, V>(stream, numbers, moments, arrays); });
  });
}

}  // namespace concord::cuda::torch_side
