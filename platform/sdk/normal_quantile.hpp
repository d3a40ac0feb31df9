// Float arithmetic that is rounded in the same way everywhere, and the normal quantile computed with it. Header-only,
// also for device code. platform/sdk/philox.hpp says which compilers need which flags.
#pragma once

#include <cstdint>

#include "platform/sdk/dtypes.hpp"

namespace concord::sdk {

// A value that g++ does not look through to fuse a product with a sum (outside of vectorised loops, see above).
template <class Real>
CONCORD_HOST_DEVICE inline Real fenced(Real value) {
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && __GNUC__ >= 12
  return __builtin_assoc_barrier(value);
#else
  return value;
#endif
}

#if defined(__CUDA_ARCH__)
__device__ inline float add(float a, float b) { return __fadd_rn(a, b); }
__device__ inline float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float div(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline float square_root(float a) { return __fsqrt_rn(a); }
__device__ inline double add(double a, double b) { return __dadd_rn(a, b); }
__device__ inline double mul(double a, double b) { return __dmul_rn(a, b); }
#else
CONCORD_HOST_DEVICE inline float add(float a, float b) { return fenced(a + b); }
CONCORD_HOST_DEVICE inline float mul(float a, float b) { return fenced(a * b); }
CONCORD_HOST_DEVICE inline float div(float a, float b) { return a / b; }
CONCORD_HOST_DEVICE inline float square_root(float a) { return __builtin_sqrtf(a); }
CONCORD_HOST_DEVICE inline double add(double a, double b) { return fenced(a + b); }
CONCORD_HOST_DEVICE inline double mul(double a, double b) { return fenced(a * b); }
#endif

// a + b * x, rounded twice: one step of Horner's rule.
CONCORD_HOST_DEVICE inline float step(float a, float b, float x) { return add(a, mul(b, x)); }

// ln(x) of a normal float x in (0, 1]. The polynomial is that of logf in Cephes (Moshier), good to about an ulp.
CONCORD_HOST_DEVICE inline float natural_log(float x) {
  const uint32_t bits = float_bits(x) + (0x3f800000u - 0x3f3504f3u);  // split at sqrt(1/2): mantissa in [0.707, 1.414)
  const float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  const float f = add(float_from_bits((bits & 0x007fffffu) + 0x3f3504f3u), -1.0f);
  const float f2 = mul(f, f);
  float tail = step(-1.1514610310e-1f, 7.0376836292e-2f, f);
  tail = step(1.1676998740e-1f, tail, f);
  tail = step(-1.2420140846e-1f, tail, f);
  tail = step(1.4249322787e-1f, tail, f);
  tail = step(-1.6668057665e-1f, tail, f);
  tail = step(2.0000714765e-1f, tail, f);
  tail = step(-2.4999993993e-1f, tail, f);
  tail = step(3.3333331174e-1f, tail, f);
  tail = mul(mul(tail, f), f2);
  tail = step(tail, exponent, -2.12194440e-4f);  // ln 2 in two parts, the first of which multiplies exactly
  tail = step(tail, -0.5f, f2);
  return step(add(f, tail), exponent, 0.693359375f);
}

// The |z| whose upper tail has probability |tail|, in (0, 1/2]; |centre| is 1/2 - tail, passed separately because it
// keeps its precision near 0. Wichura's AS 241, PPND7 ("The percentage points of the normal distribution", Applied
// Statistics 37, 1988); in these roundings at most 5e-7 relative off the exact quantile of |tail|. All three branches
// are computed and one is taken, so that a loop vectorises.
CONCORD_HOST_DEVICE inline float normal_quantile(float tail, float centre) {
  const float c = step(0.180625f, -centre, centre);
  const float centre_over =
      mul(centre, step(3.3871327179e+0f, step(5.0434271938e+1f, step(1.5929113202e+2f, 5.9109374720e+1f, c), c), c));
  const float centre_under = step(1.0f, step(1.7895169469e+1f, step(7.8757757664e+1f, 6.7187563600e+1f, c), c), c);
  const float depth = square_root(-natural_log(tail));
  const float n = add(depth, -1.6f);
  const float near_over =
      step(1.4234372777e+0f, step(2.7568153900e+0f, step(1.3067284816e+0f, 1.7023821103e-1f, n), n), n);
  const float near_under = step(1.0f, step(7.3700164250e-1f, 1.2021132975e-1f, n), n);
  const float f = add(depth, -5.0f);
  const float far_over =
      step(6.6579051150e+0f, step(3.0812263860e+0f, step(4.2868294337e-1f, 1.7337203997e-2f, f), f), f);
  const float far_under = step(1.0f, step(2.4197894225e-1f, 1.2258202635e-2f, f), f);
  const float tail_over = depth <= 5.0f ? near_over : far_over;
  const float tail_under = depth <= 5.0f ? near_under : far_under;
  return div(centre <= 0.425f ? centre_over : tail_over, centre <= 0.425f ? centre_under : tail_under);
}

// A standard normal value. The top bit of |high| is the sign. The 62 bits m below it (31 of high, 31 of low) give the
// tail (m + 1/2) / 2^63, so |z| reaches 9.1 and is fine-grained around 0 as well as far out.
CONCORD_HOST_DEVICE inline float standard_normal(uint32_t low, uint32_t high) {
  const auto a = static_cast<int32_t>(high & 0x7fffffffu);
  const auto b = static_cast<int32_t>(low >> 1);
  const float tail = add(mul(static_cast<float>(a), 0x1p-32f), mul(add(static_cast<float>(b), 0.5f), 0x1p-63f));
  const float centre = add(mul(static_cast<float>(0x7fffffff - a), 0x1p-32f),
                           mul(add(static_cast<float>(0x7fffffff - b), 0.5f), 0x1p-63f));
  return float_from_bits(float_bits(normal_quantile(tail, centre)) | (high & 0x80000000u));
}

}  // namespace concord::sdk
