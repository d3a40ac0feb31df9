#include "core/ops/cpu/swiglu.h"

#include "core/ops/cpu/math.h"
#include "core/ops/cpu/parallel.h"

namespace concord::ops {

template <class T>
void swiglu_forward(int64_t rows, int64_t width, const T* gate_up, T* y) {
  using S = Sum<T>;
  parallel(rows, row_grain(4 * width), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gate = gate_up + row * 2 * width;
      const T* up = gate + width;
      T* to = y + row * width;
      for (int64_t i = 0; i < width; ++i) {
        const S g = S(gate[i]);
        to[i] = T(g * sigmoid(g) * S(up[i]));
      }
    }
  });
}

// silu'(g) = s + g s (1 - s) with s = sigmoid(g).
template <class T>
void swiglu_backward(int64_t rows, int64_t width, const T* grad, const T* gate_up, T* dgate_up) {
  using S = Sum<T>;
  parallel(rows, row_grain(4 * width), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* from = grad + row * width;
      const T* gate = gate_up + row * 2 * width;
      const T* up = gate + width;
      T* dgate = dgate_up + row * 2 * width;
      T* dup = dgate + width;
      for (int64_t i = 0; i < width; ++i) {
        const S g = S(gate[i]);
        const S s = sigmoid(g);
        const S d = S(from[i]);
        const S silu = g * s;
        const S slope = s + silu * (S(1) - s);
        dgate[i] = T(d * S(up[i]) * slope);
        dup[i] = T(d * silu);
      }
    }
  });
}

#define CONCORD_SWIGLU(T)                                          \
  template void swiglu_forward<T>(int64_t, int64_t, const T*, T*); \
  template void swiglu_backward<T>(int64_t, int64_t, const T*, const T*, T*);
CONCORD_SWIGLU(float)
CONCORD_SWIGLU(double)
CONCORD_SWIGLU(c10::BFloat16)
#undef CONCORD_SWIGLU

}  // namespace concord::ops
