// The loop of rope. T is float, double or BFloat16.
#pragma once

#include <cstdint>

#include "core/ops/cpu/math.h"

namespace concord::ops {

// Tokens have two dimensions, because x is [B, S, ...] or [S, B, ...] and the angles often depend on only one.
struct RopeShape {
  int64_t outer, inner;  // tokens: outer * inner
  int64_t heads;
  int64_t dim;               // size of a head
  int64_t half;              // number of rotated pairs (i, i + half)
  int64_t x_strides[3];      // strides of x in elements: outer, inner, heads; a head is dense, and y is contiguous
  int64_t angle_strides[2];  // strides of cos and sin, whose last dimension is dense
};

// y = x with its pairs rotated: (a cos - b sin, b cos + a sin), or rotated back, which is also the derivative.
template <class T>
void rope_turn(const RopeShape& shape, const T* x, const Sum<T>* cos, const Sum<T>* sin, bool back, T* y);

}  // namespace concord::ops
