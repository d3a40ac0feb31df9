// Arithmetic for loops over elements, written so that g++ vectorises it on any CPU, without intrinsics.
#pragma once

#include <c10/util/BFloat16.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace concord::ops {

// The accumulation type: float for float and BFloat16, double for double.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Returns e^x for x up to 88.3, accurate to about one ulp: x = n ln 2 + r, a polynomial for e^r (Cephes, Moshier), n
// added to the exponent. Below -87.3 the result is 0 instead of a subnormal. NaN is preserved. For the terms of a
// softmax, which are at most 0 except for rounding.
inline float softmax_exponential(float x) {
  constexpr float kLow = -87.3365447f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: a sum with it has no bits below 1
  const float shifted = x * 1.44269504088896341f + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  const float r2 = r * r;  // in pairs, so that no product waits for all the others
  const float p0 = 1.6666665459e-1f * r + 5.0000001201e-1f;
  const float p1 = 8.3334519073e-3f * r + 4.1665795894e-2f;
  const float p2 = 1.9875691500e-4f * r + 1.3981999507e-3f;
  const float e = ((p2 * r2 + p1) * r2 + p0) * r2 + (r + 1.0f);
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127u) << 23);
  return x < kLow ? 0.0f : e * power;
}
inline double softmax_exponential(double x) { return std::exp(x); }

// Like softmax_exponential(), for any x; saturates at e^88.3.
inline float exponential(float x) { return softmax_exponential(x > 88.3762626f ? 88.3762626f : x); }
inline double exponential(double x) { return std::exp(x); }

template <class Real>
inline Real sigmoid(Real x) {
  return Real(1) / (Real(1) + exponential(-x));
}

// Returns the sum of term(0) .. term(count - 1), in sixteen partial sums: the order is fixed, and the loop can be
// vectorised.
template <class Real, class Term>
inline Real sum_of(int64_t count, const Term& term) {
  constexpr int64_t kLanes = 16;
  Real lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lane[j] += term(i + j);
  }
  for (int64_t j = 0; i + j < count; ++j) lane[j] += term(i + j);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

// Returns the maximum of |first| and the terms, in the same way.
template <class Real, class Term>
inline Real max_of(int64_t count, Real first, const Term& term) {
  constexpr int64_t kLanes = 16;
  Real lane[kLanes];
  for (Real& each : lane) each = first;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const Real value = term(i + j);
      lane[j] = value > lane[j] ? value : lane[j];
    }
  }
  for (; i < count; ++i) lane[0] = term(i) > lane[0] ? term(i) : lane[0];
  for (const Real each : lane) first = each > first ? each : first;
  return first;
}

}  // namespace concord::ops
