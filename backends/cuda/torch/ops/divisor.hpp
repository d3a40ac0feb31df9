// Division by a number that many elements have in common, with fewer instructions than a division of fp32 and the same
// bits. For kernels, and for tests on the host.
#pragma once

#include <cmath>

#include "platform/sdk/dtypes.hpp"

namespace concord::cuda::torch_side {

// Corrects a quotient by its remainder, which a fused multiply-add computes without rounding (Markstein, "Computation
// of elementary functions on the IBM RISC System/6000 processor", 1990). The first quotient is less than 1.5 units from
// the exact one. What the correction misses is less than 2^-22 units. So only exact quotients that are so near to the
// middle of two numbers could be rounded wrongly; the first quotient then is one of these two, half a unit away, the
// correction misses less than b 2^-26 units, where b is the mantissa of |value|, from 1 to 2, and no quotient of two
// numbers of 24 bits is nearer to the middle than 2^-24 / b.
struct Divisor {
  float value;
  float reciprocal;  // 1 / value, rounded to nearest

  // Whether divide() has the bits of x / value for all finite |x| whose quotient is 0 or at least 2^-100, and which
  // themselves are 0 or at least 2^-100: other remainders are not exact. Smaller quotients differ in their last bits.
  CONCORD_HOST_DEVICE bool is_in_range() const { return value >= 0x1p-100f && value <= 0x1p100f; }

  CONCORD_HOST_DEVICE float divide(float x) const {
    const float first = x * reciprocal;
    return fmaf(fmaf(-first, value, x), reciprocal, first);
  }
};

}  // namespace concord::cuda::torch_side
