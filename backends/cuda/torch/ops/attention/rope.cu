#include "backends/cuda/torch/ops/attention/rope.cuh"
#include "backends/cuda/torch/ops/choices.h"

namespace concord::cuda::torch_side {
namespace {

constexpr int kBlock = 256;

// [several elements at once]
const Choice kPacked[2] = {{"rope: one element", kAllTypes}, {"rope: vectors", kAllTypes}};

// One thread for N pairs of elements of a query or key head, or for N that are only copied. The items of a token: those
// of its query and key heads, then those of its value heads.
template <class T, int N>
__global__ void turn_packed(PackedRope shape, const SumOf<T>* cos, const SumOf<T>* sin, SumOf<T> sign, T* y) {
  using S = SumOf<T>;
  using Vec = Vector<T, N>;
  const auto dim = static_cast<unsigned>(shape.dim), half = static_cast<unsigned>(shape.half);
  const auto heads = static_cast<unsigned>(shape.heads), kv_heads = static_cast<unsigned>(shape.kv_heads);
  const unsigned turned = heads + kv_heads, per_turned = (dim - half) / N, per_value = dim / N;
  const unsigned per_token = turned * per_turned + kv_heads * per_value;
  const unsigned i = blockIdx.x * kBlock + threadIdx.x;
  const unsigned token = i / per_token, item = i % per_token;
  if (token >= shape.outer * shape.inner) return;
  const unsigned outer = token / static_cast<unsigned>(shape.inner), inner = token % static_cast<unsigned>(shape.inner);
  const bool is_value = item >= turned * per_turned;
  const unsigned rest = is_value ? item - turned * per_turned : item;
  const unsigned head =
      rest / (is_value ? per_value : per_turned);  // index among the rotated heads, or among the values
  const unsigned j = rest % (is_value ? per_value : per_turned) * N;
  const HeadsFrom& part = is_value ? shape.v : head < heads ? shape.q : shape.k;
  const unsigned own = is_value || head < heads ? head : head - heads;  // in its part
  const T* const from =
      static_cast<const T*>(part.x) + outer * part.stride[0] + inner * part.stride[1] + own * part.stride[2];
  T* const to = y + (static_cast<int64_t>(token) * (turned + kv_heads) + (is_value ? turned : 0) + head) * dim;
  const auto at = [&](const T* begin, unsigned k) { return *reinterpret_cast<const Vec*>(begin + k); };
  const auto put = [&](unsigned k, const Vec& v) { *reinterpret_cast<Vec*>(to + k) = v; };
  if (is_value) return put(j, at(from, j));
  if (j >= half) return put(half + j, at(from, half + j));
  const int64_t angle = outer * shape.angle_stride[0] + inner * shape.angle_stride[1] + j;
  const Vec a = at(from, j), b = at(from, half + j);
  const auto cosines = *reinterpret_cast<const Vector<S, N>*>(cos + angle);
  const auto sines = *reinterpret_cast<const Vector<S, N>*>(sin + angle);
  Vec first, second;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const S c = cosines.at[k], s = sines.at[k] * sign;
    const S x = static_cast<S>(a.at[k]), z = static_cast<S>(b.at[k]);
    first.at[k] = static_cast<T>(x * c - z * s);
    second.at[k] = static_cast<T>(z * c + x * s);
  }
  put(j, first);
  put(half + j, second);
}

// Launches |count| outer lines, starting at |first|: the kernel counts in 32-bit integers.
template <class T>
PackedRope some_of(const PackedRope& shape, int64_t first, int64_t count) {
  PackedRope part = shape;
  part.outer = count;
  for (HeadsFrom* each : {&part.q, &part.k, &part.v})
    each->x = static_cast<const T*>(each->x) + first * each->stride[0];
  return part;
}

template <class T, int N>
void launch_packed(cudaStream_t stream, const PackedRope& shape, const SumOf<T>* cos, const SumOf<T>* sin, bool back,
                   T* y) {
  using S = SumOf<T>;
  const int64_t turned = (shape.heads + shape.kv_heads) * ((shape.dim - shape.half) / N);
  const int64_t items = shape.inner * (turned + shape.kv_heads * (shape.dim / N));  // of an outer line
  const int64_t elements = shape.inner * (shape.heads + 2 * shape.kv_heads) * shape.dim;
  if (items == 0) return;
  constexpr int64_t kMaxElements = 0xffffffff;
  const int64_t most = std::max<int64_t>(1, kMaxElements / elements);
  for (int64_t first = 0; first < shape.outer; first += most) {
    const int64_t count = std::min(most, shape.outer - first);
    turn_packed<T, N><<<grid(count * items, kBlock), kBlock, 0, stream>>>(
        some_of<T>(shape, first, count), cos + first * shape.angle_stride[0], sin + first * shape.angle_stride[0],
        back ? S(-1) : S(1), y + first * elements);
  }
}

}  // namespace

void rope_packed(Where where, const PackedRope& shape, const void* cos, const void* sin, bool back, void* y) {
  visit(where.type, [&]<class T>(T) {
    using S = SumOf<T>;
    visit_wide<T>(packs_wide<T>(shape, cos, sin, y), [&](auto n) {
      kPacked[n.value > 1].take(where.type);
      launch_packed<T, n.value>(where.stream, shape, static_cast<const S*>(cos), static_cast<const S*>(sin), back,
                                static_cast<T*>(y));
    });
  });
  check_launch("rope");
}

}  // namespace concord::cuda::torch_side
