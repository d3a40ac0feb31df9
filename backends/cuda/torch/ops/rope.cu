#include "backends/cuda/torch/ops/device_math.cuh"

namespace concord::cuda::torch_side {
namespace {

constexpr int kBlock = 256;

// One thread for a pair of elements, or for one that is only copied.
template <class T>
__global__ void turn(RopeShape shape, const T* x, const SumOf<T>* cos, const SumOf<T>* sin, SumOf<T> sign, T* y) {
  using S = SumOf<T>;
  const int64_t per_head = shape.dim - shape.half;  // pairs, and what is copied
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const int64_t head = i / per_head, j = i % per_head;
  const int64_t token = head / shape.heads;
  if (token >= shape.outer * shape.inner) return;
  const int64_t outer = token / shape.inner, inner = token % shape.inner;
  const T* const from =
      x + outer * shape.x_stride[0] + inner * shape.x_stride[1] + head % shape.heads * shape.x_stride[2];
  T* const to = y + head * shape.dim;
  if (j >= shape.half) {
    to[shape.half + j] = from[shape.half + j];
    return;
  }
  const int64_t angle = outer * shape.angle_stride[0] + inner * shape.angle_stride[1] + j;
  const S c = cos[angle], s = sin[angle] * sign;
  const S a = static_cast<S>(from[j]), b = static_cast<S>(from[shape.half + j]);
  to[j] = static_cast<T>(a * c - b * s);
  to[shape.half + j] = static_cast<T>(b * c + a * s);
}

}  // namespace

void rope(Where where, const RopeShape& shape, const void* x, const void* cos, const void* sin, bool back, void* y) {
  const int64_t items = shape.outer * shape.inner * shape.heads * (shape.dim - shape.half);
  if (items == 0) return;
  visit(where.type, [&]<class T>(T) {
    using S = SumOf<T>;
    turn<T><<<grid(items, kBlock), kBlock, 0, where.stream>>>(shape, static_cast<const T*>(x),
                                                              static_cast<const S*>(cos), static_cast<const S*>(sin),
                                                              back ? S(-1) : S(1), static_cast<T*>(y));
  });
  check_launch("rope");
}

}  // namespace concord::cuda::torch_side
