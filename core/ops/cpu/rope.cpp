#include "core/ops/cpu/rope.h"

#include <algorithm>

#include "core/ops/cpu/parallel.h"

namespace concord::ops {
namespace {

template <class T>
void turn_head(int64_t half, const T* __restrict x, const Sum<T>* __restrict cos, const Sum<T>* __restrict sin,
               Sum<T> sign, T* __restrict y) {
  using S = Sum<T>;
  for (int64_t i = 0; i < half; ++i) {
    const S a = S(x[i]);
    const S b = S(x[half + i]);
    const S s = sign * sin[i];
    y[i] = T(a * cos[i] - b * s);
    y[half + i] = T(b * cos[i] + a * s);
  }
}

}  // namespace

template <class T>
void rope_turn(const RopeShape& shape, const T* x, const Sum<T>* cos, const Sum<T>* sin, bool back, T* y) {
  const Sum<T> sign = back ? Sum<T>(-1) : Sum<T>(1);
  parallel(shape.outer * shape.inner, row_grain(shape.heads * shape.dim), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t outer = token / shape.inner;
      const int64_t inner = token % shape.inner;
      const int64_t angle = outer * shape.angle_strides[0] + inner * shape.angle_strides[1];
      for (int64_t head = 0; head < shape.heads; ++head) {
        const T* from = x + outer * shape.x_strides[0] + inner * shape.x_strides[1] + head * shape.x_strides[2];
        T* to = y + (token * shape.heads + head) * shape.dim;
        turn_head<T>(shape.half, from, cos + angle, sin + angle, sign, to);
        std::copy(from + 2 * shape.half, from + shape.dim, to + 2 * shape.half);
      }
    }
  });
}

#define CONCORD_ROPE(T) template void rope_turn<T>(const RopeShape&, const T*, const Sum<T>*, const Sum<T>*, bool, T*);
CONCORD_ROPE(float)
CONCORD_ROPE(double)
CONCORD_ROPE(c10::BFloat16)
#undef CONCORD_ROPE

}  // namespace concord::ops
