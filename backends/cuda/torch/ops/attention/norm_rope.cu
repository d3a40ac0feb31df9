#include "backends/cuda/torch/ops/attention/rope.cuh"
#include "backends/cuda/torch/ops/choices.h"

namespace concord::cuda::torch_side {
namespace {

// Threads of a block. The derivative has so many registers per thread that smaller blocks fill a processor better.
constexpr int kForthBlock = 256, kBackBlock = 128;

// [8, 16 or 32 threads for a head]
const Choice kForth[3] = {{"norm_rope_qkv: 8 threads for a head", kAllTypes},
                          {"norm_rope_qkv: 16 threads for a head", kAllTypes},
                          {"norm_rope_qkv: 32 threads for a head", kAllTypes}};
const Choice kBack[3] = {{"norm_rope_qkv_backward: 8 threads for a head", kAllTypes},
                         {"norm_rope_qkv_backward: 16 threads for a head", kAllTypes},
                         {"norm_rope_qkv_backward: 32 threads for a head", kAllTypes}};

// A thread has a vector of the first half of what is turned, if there is one left for it, and the one that is |half|
// after it, which is the other of each pair or an element that is not turned.
template <class T>
struct Two {
  static constexpr int N = kWide<T>;
  Vector<T, N> first = {}, second = {};
};

struct Lane {
  unsigned at;  // position of its vector in a head
  bool is_there, is_pair;

  template <class T>
  __device__ Two<T> load(const T* head, unsigned half) const {
    Two<T> two;
    if (is_pair) two.first = *reinterpret_cast<const Vector<T, kWide<T>>*>(head + at);
    if (is_there) two.second = *reinterpret_cast<const Vector<T, kWide<T>>*>(head + half + at);
    return two;
  }
  template <class T>
  __device__ void store(T* head, unsigned half, const Two<T>& two) const {
    if (is_pair) *reinterpret_cast<Vector<T, kWide<T>>*>(head + at) = two.first;
    if (is_there) *reinterpret_cast<Vector<T, kWide<T>>*>(head + half + at) = two.second;
  }
};

template <class T, int kLanes>
__device__ Lane own_lane(const PackedRope& shape) {
  const unsigned at = threadIdx.x % kLanes * kWide<T>;
  return {at, at < shape.dim - shape.half, at < shape.half};
}

// Over the threads of a head, some of which may have none.
template <int kLanes, class S>
__device__ S over_head(S value) {
  const unsigned lanes = kLanes == 32 ? ~0u : ((1u << (kLanes % 32)) - 1) << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) value += __shfl_xor_sync(lanes, value, lane);
  return value;
}

// Cosines and sines of a thread's pairs; 1 and 0 for elements without a pair.
template <class T>
struct Angles {
  using S = SumOf<T>;
  S cos[kWide<T>], sin[kWide<T>];

  __device__ Angles(const PackedRope& shape, unsigned token, const Lane& lane, const S* all_cos, const S* all_sin) {
    const auto inner = static_cast<unsigned>(shape.inner);
    const int64_t line = token / inner * shape.angle_stride[0] + token % inner * shape.angle_stride[1] + lane.at;
    Vector<S, kWide<T>> c, s;
    if (lane.is_pair) {
      c = *reinterpret_cast<const Vector<S, kWide<T>>*>(all_cos + line);
      s = *reinterpret_cast<const Vector<S, kWide<T>>*>(all_sin + line);
    }
#pragma unroll
    for (int k = 0; k < kWide<T>; ++k) {
      cos[k] = lane.is_pair ? c.at[k] : S(1);
      sin[k] = lane.is_pair ? s.at[k] : S(0);
    }
  }
};

// Which heads: 0 queries, 1 keys, 2 values.
struct HeadPart {
  HeadsFrom from;
  const void* weight;
  unsigned heads, first;  // how many, and how many are before them

  __device__ HeadPart(const PackedRope& shape, const HeadNorms& norms, int part)
      : from(part == 0   ? shape.q
             : part == 1 ? shape.k
                         : shape.v),
        weight(part == 0   ? norms.q
               : part == 1 ? norms.k
                           : nullptr),
        heads(static_cast<unsigned>(part == 0 ? shape.heads : shape.kv_heads)),
        first(static_cast<unsigned>(part == 0   ? 0
                                    : part == 1 ? shape.heads
                                                : shape.heads + shape.kv_heads)) {}

  template <class T>
  __device__ const T* head(const PackedRope& shape, unsigned token, unsigned head) const {
    const auto inner = static_cast<unsigned>(shape.inner);
    return static_cast<const T*>(from.x) + token / inner * from.stride[0] + token % inner * from.stride[1] +
           head * from.stride[2];
  }
};

template <class T, int kLanes>
__global__ void __launch_bounds__(kForthBlock)
    forward(PackedRope shape, HeadNorms norms, const SumOf<T>* cos, const SumOf<T>* sin, T* y, SumOf<T>* rstd) {
  using S = SumOf<T>;
  const auto turned = static_cast<unsigned>(shape.heads + shape.kv_heads);
  const unsigned all = turned + static_cast<unsigned>(shape.kv_heads), half = static_cast<unsigned>(shape.half);
  const unsigned row = blockIdx.x * (kForthBlock / kLanes) + threadIdx.x / kLanes;
  const unsigned token = row / all, head = row % all;
  if (token >= shape.outer * shape.inner) return;  // all threads of a head, or none of them
  const HeadPart part(shape, norms, head < shape.heads ? 0 : head < turned ? 1 : 2);
  const Lane lane = own_lane<T, kLanes>(shape);
  Two<T> x = lane.load(part.head<T>(shape, token, head - part.first), half);
  T* const to = y + static_cast<int64_t>(row) * shape.dim;
  if (part.weight == nullptr) return lane.store(to, half, x);
  S squares = 0;
#pragma unroll
  for (int k = 0; k < kWide<T>; ++k) {
    const S a = static_cast<S>(x.first.at[k]), b = static_cast<S>(x.second.at[k]);
    squares += a * a + b * b;
  }
  const S r = S(1) / sqrt(over_head<kLanes>(squares) / static_cast<S>(shape.dim) + static_cast<S>(norms.eps));
  if (threadIdx.x % kLanes == 0) rstd[static_cast<int64_t>(token) * turned + head] = r;
  const Two<T> w = lane.load(static_cast<const T*>(part.weight), half);
  const Angles<T> angles(shape, token, lane, cos, sin);
#pragma unroll
  for (int k = 0; k < kWide<T>; ++k) {
    const S a = static_cast<S>(x.first.at[k]) * r * static_cast<S>(w.first.at[k]);
    const S b = static_cast<S>(x.second.at[k]) * r * static_cast<S>(w.second.at[k]);
    x.first.at[k] = static_cast<T>(a * angles.cos[k] - b * angles.sin[k]);
    x.second.at[k] = static_cast<T>(b * angles.cos[k] + a * angles.sin[k]);
  }
  lane.store(to, half, x);
}

// Blocks of queries, of keys and of values.
struct PartBlocks {
  unsigned of[3];
};

// The sums of a block's threads over its heads -> its line of |scratch|.
template <class T, int kLanes>
__device__ void write_sums(const PackedRope& shape, const Lane& lane, const SumOf<T> (&first)[kWide<T>],
                           const SumOf<T> (&second)[kWide<T>], SumOf<T>* scratch) {
  using S = SumOf<T>;
  constexpr int kHeads = kBackBlock / kLanes, kMaxHead = kLanes * 2 * kWide<T>;
  __shared__ S shared[kHeads][kMaxHead];
  const auto half = static_cast<unsigned>(shape.half), dim = static_cast<unsigned>(shape.dim);
  S* const own = shared[threadIdx.x / kLanes];
#pragma unroll
  for (int k = 0; k < kWide<T>; ++k) {
    if (lane.is_pair) own[lane.at + k] = first[k];
    if (lane.is_there) own[half + lane.at + k] = second[k];
  }
  __syncthreads();
  for (unsigned column = threadIdx.x; column < dim; column += kBackBlock) {
    S sum = 0;
    for (int i = 0; i < kHeads; ++i) sum += shared[i][column];
    scratch[static_cast<int64_t>(blockIdx.x) * dim + column] = sum;
  }
}

// A block takes every so manieth group of heads of its part. With u the gradient turned back, h = x * rstd and g = u *
// weight: dx = rstd * (g - h * mean(g h)), dweight = sum of u h.
template <class T, int kLanes>
__global__ void __launch_bounds__(kBackBlock)
    backward(PackedRope shape, HeadNorms norms, PartBlocks blocks, const SumOf<T>* cos, const SumOf<T>* sin,
             const T* qkv, const SumOf<T>* rstd, T* dqkv, SumOf<T>* scratch) {
  using S = SumOf<T>;
  constexpr unsigned kHeads = kBackBlock / kLanes;
  const int number = blockIdx.x < blocks.of[0] ? 0 : blockIdx.x < blocks.of[0] + blocks.of[1] ? 1 : 2;
  const unsigned before = number == 0 ? 0 : number == 1 ? blocks.of[0] : blocks.of[0] + blocks.of[1];
  const HeadPart part(shape, norms, number);
  const Lane lane = own_lane<T, kLanes>(shape);
  const auto turned = static_cast<unsigned>(shape.heads + shape.kv_heads), half = static_cast<unsigned>(shape.half);
  const unsigned all = turned + static_cast<unsigned>(shape.kv_heads);
  const unsigned rows = static_cast<unsigned>(shape.outer * shape.inner) * part.heads;
  Two<T> w;
  if (part.weight != nullptr) w = lane.load(static_cast<const T*>(part.weight), half);
  S first_sums[kWide<T>] = {}, second_sums[kWide<T>] = {};
  for (unsigned row = (blockIdx.x - before) * kHeads + threadIdx.x / kLanes; row < rows;
       row += blocks.of[number] * kHeads) {
    const unsigned token = row / part.heads, head = row % part.heads;
    Two<T> g = lane.load(part.head<T>(shape, token, head), half);
    const int64_t place = (static_cast<int64_t>(token) * all + part.first + head) * shape.dim;
    if (part.weight == nullptr) {
      lane.store(dqkv + place, half, g);
      continue;
    }
    const Two<T> x = lane.load(qkv + place, half);
    const S r = rstd[static_cast<int64_t>(token) * turned + part.first + head];
    const Angles<T> angles(shape, token, lane, cos, sin);
    S first[kWide<T>], second[kWide<T>], product = 0;
#pragma unroll
    for (int k = 0; k < kWide<T>; ++k) {
      const S a = static_cast<S>(g.first.at[k]), b = static_cast<S>(g.second.at[k]);
      const S u = a * angles.cos[k] + b * angles.sin[k], v = b * angles.cos[k] - a * angles.sin[k];
      const S of_first = u * (static_cast<S>(x.first.at[k]) * r), of_second = v * (static_cast<S>(x.second.at[k]) * r);
      first_sums[k] += of_first;
      second_sums[k] += of_second;
      first[k] = u * static_cast<S>(w.first.at[k]);
      second[k] = v * static_cast<S>(w.second.at[k]);
      product += of_first * static_cast<S>(w.first.at[k]) + of_second * static_cast<S>(w.second.at[k]);
    }
    const S mean = over_head<kLanes>(product) / static_cast<S>(shape.dim);
#pragma unroll
    for (int k = 0; k < kWide<T>; ++k) {
      g.first.at[k] = static_cast<T>(r * (first[k] - static_cast<S>(x.first.at[k]) * r * mean));
      g.second.at[k] = static_cast<T>(r * (second[k] - static_cast<S>(x.second.at[k]) * r * mean));
    }
    lane.store(dqkv + place, half, g);
  }
  if (part.weight != nullptr) write_sums<T, kLanes>(shape, lane, first_sums, second_sums, scratch);
}

// Threads for a head; 0 where 32 are not enough.
int lanes_of(const PackedRope& shape, Type type) {
  const int64_t at_once = type == Type::f64 ? 2 : type == Type::f32 ? 4 : 8;
  for (const int lanes : {8, 16, 32}) {
    if (shape.dim - shape.half <= lanes * at_once) return lanes;
  }
  return 0;
}

template <class Body>
void visit_lanes(int lanes, const Body& body) {
  if (lanes == 8) return body(std::integral_constant<int, 8>{});
  if (lanes == 16) return body(std::integral_constant<int, 16>{});
  if (lanes == 32) return body(std::integral_constant<int, 32>{});
}

int choice_of(int lanes) { return lanes == 8 ? 0 : lanes == 16 ? 1 : 2; }

// As many as the device runs at a time.
template <class Kernel>
int64_t blocks_at_a_time(Kernel kernel) {
  int device = 0, processors = 0, blocks = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kBackBlock, 0);
  return static_cast<int64_t>(processors) * blocks;
}

// Shared out by the number of heads.
template <class T, int kLanes>
PartBlocks back_blocks(const PackedRope& shape) {
  static const int64_t most = blocks_at_a_time(backward<T, kLanes>);
  const int64_t all = shape.heads + 2 * shape.kv_heads, heads_of_block = kBackBlock / kLanes;
  PartBlocks blocks{};
  for (int part = 0; part < 3; ++part) {
    const int64_t heads = part == 0 ? shape.heads : shape.kv_heads;
    const int64_t needed = (shape.outer * shape.inner * heads + heads_of_block - 1) / heads_of_block;
    blocks.of[part] = static_cast<unsigned>(std::max<int64_t>(1, std::min(needed, most * heads / all)));
  }
  return blocks;
}

}  // namespace

bool norm_rope_fits(const PackedRope& shape, Type type, const void* cos, const void* sin,
                    std::initializer_list<const void*> pointers) {
  constexpr int64_t kMaxHeads = 0x7fffffff;  // the kernels' numbers are of 32 bits
  const int64_t heads = shape.outer * shape.inner * (shape.heads + 2 * shape.kv_heads);
  bool fits = lanes_of(shape, type) > 0 && heads > 0 && heads < kMaxHeads &&
              std::all_of(pointers.begin(), pointers.end(), is_aligned);
  visit(type, [&]<class T>(T) { fits = fits && packs_wide<T>(shape, cos, sin, /*y=*/nullptr); });
  return fits;
}

void norm_rope(Where where, const PackedRope& shape, const HeadNorms& norms, const void* cos, const void* sin, void* y,
               void* rstd) {
  const int lanes = lanes_of(shape, where.type);
  const int64_t heads = shape.outer * shape.inner * (shape.heads + 2 * shape.kv_heads);
  kForth[choice_of(lanes)].take(where.type);
  visit(where.type, [&]<class T>(T) {
    using S = SumOf<T>;
    visit_lanes(lanes, [&](auto n) {
      forward<T, n.value><<<grid(heads, kForthBlock / n.value), kForthBlock, 0, where.stream>>>(
          shape, norms, static_cast<const S*>(cos), static_cast<const S*>(sin), static_cast<T*>(y),
          static_cast<S*>(rstd));
    });
  });
  check_launch("norm_rope");
}

int64_t norm_rope_lines(const PackedRope& shape, Type type) {
  int64_t lines = 0;
  visit(type, [&]<class T>(T) {
    visit_lanes(lanes_of(shape, type), [&](auto n) {
      const PartBlocks blocks = back_blocks<T, n.value>(shape);
      lines = blocks.of[0] + blocks.of[1];
    });
  });
  return lines;
}

void norm_rope_backward(Where where, const PackedRope& shape, const HeadNorms& norms, const void* cos, const void* sin,
                        const void* qkv, const void* rstd, void* dqkv, void* scratch, void* dq_weight,
                        void* dk_weight) {
  const int lanes = lanes_of(shape, where.type);
  kBack[choice_of(lanes)].take(where.type);
  visit(where.type, [&]<class T>(T) {
    using S = SumOf<T>;
    visit_lanes(lanes, [&](auto n) {
      const PartBlocks blocks = back_blocks<T, n.value>(shape);
      S* const lines = static_cast<S*>(scratch);
      backward<T, n.value><<<blocks.of[0] + blocks.of[1] + blocks.of[2], kBackBlock, 0, where.stream>>>(
          shape, norms, blocks, static_cast<const S*>(cos), static_cast<const S*>(sin), static_cast<const T*>(qkv),
          static_cast<const S*>(rstd), static_cast<T*>(dqkv), lines);
      add_up_lines<T>(where.stream, blocks.of[0], shape.dim, lines, static_cast<T*>(dq_weight));
      add_up_lines<T>(where.stream, blocks.of[1], shape.dim, lines + blocks.of[0] * shape.dim,
                      static_cast<T*>(dk_weight));
    });
  });
  check_launch("norm_rope_backward");
}

}  // namespace concord::cuda::torch_side
