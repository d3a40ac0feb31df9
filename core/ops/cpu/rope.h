// The loop of rope. T is float, double or BFloat16.
#pragma once

#include <cstdint>

#include "core/ops/cpu/math.h"

namespace concord::ops {

// Tokens are numbered by two dimensions, because x is [B, S, ...] or [S, B, ...] and the angles often depend on one
// only.
struct RopeShape {
  int64_t outer, inner;  // tokens: outer * inner
  int64_t heads;
  int64_t dim;               // of a head
  int64_t half;              // pairs that turn: (i, i + half)
  int64_t x_strides[3];      // of x, in elements: outer, inner, heads; a head is dense, and y is dense altogether
  int64_t angle_strides[2];  // of cos and sin, which are dense in their last dimension
};

// y = x with its pairs turned: (a cos - b sin, b cos + a sin), or back, which is also the derivative.
template <class T>
void rope_turn(const RopeShape& shape, const T* x, const Sum<T>* cos, const Sum<T>* sin, bool back, T* y);

}  // namespace concord::ops
