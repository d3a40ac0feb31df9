// The 8-bit code of a fraction by one lookup, for kernels of devices and loops of the host; the format is that of
// core/ops/optimizer/block_codes.h. Fractions share a bucket if their sign, exponent and upper 7 bits of the mantissa
// are the same. A bucket has at most one threshold, so its entry holds the code of its smallest magnitude and the lower
// bits of the threshold. Magnitudes below 2^-23 share a bucket, as do those of at least 1; neither has a threshold.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define CONCORD_CODES_HOST_DEVICE __host__ __device__
#else
#define CONCORD_CODES_HOST_DEVICE
#endif

namespace concord::codes {

constexpr int kCount = 256;
constexpr int kThresholds = kCount - 1;
constexpr uint32_t kFirstPrefix = 0x3400, kLastPrefix = 0x3f80;  // the upper 16 bits of 2^-23 and of 1
constexpr int kBuckets = kLastPrefix - kFirstPrefix + 1;         // for one sign

namespace detail {

CONCORD_CODES_HOST_DEVICE inline uint32_t bits_of(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
CONCORD_CODES_HOST_DEVICE inline float float_of(uint32_t bits) {
  float value = 0;
  memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace detail

// Returns the number of thresholds that are not above |fraction|.
CONCORD_CODES_HOST_DEVICE inline uint32_t by_search(const float* thresholds, float fraction) {
  uint32_t code = 0;
  for (uint32_t step = kCount / 2; step > 0; step /= 2) {
    if (!(thresholds[code + step - 1] > fraction)) code += step;
  }
  return code;
}

// Returns the entry of |bucket| of the positive or the negative fractions: the code of its smallest magnitude; and, in
// the upper 16 bits, above which lower 16 bits magnitudes have the next code, which is one more or, for negative
// fractions, one less.
CONCORD_CODES_HOST_DEVICE inline uint32_t bucket_entry(const float* thresholds, int bucket, bool negative) {
  const uint32_t prefix = kFirstPrefix + static_cast<uint32_t>(bucket);
  const float least = bucket == 0 ? 0 : detail::float_of(prefix << 16);
  const uint32_t code = by_search(thresholds, negative ? -least : least);
  uint32_t last = 0xffff;
  if (negative ? code > 0 : code < kThresholds) {
    const float next = thresholds[negative ? code - 1 : code];
    const uint32_t bits = detail::bits_of(negative ? -next : next);
    if (bits >> 16 == prefix) last = (bits & 0xffff) - (negative ? 0 : 1);  // a threshold itself has the upper code
  }
  return last << 16 | code;
}

// Returns the code of |fraction|, which is from -1 to 1. |positive| and |negative| have the entries of all buckets;
// without |has_negative| no fraction is below 0.
template <bool has_negative>
CONCORD_CODES_HOST_DEVICE inline uint32_t by_bucket(const uint32_t* positive, const uint32_t* negative,
                                                    float fraction) {
  constexpr uint32_t kLeast = kFirstPrefix << 16;
  const uint32_t bits = detail::bits_of(fraction), magnitude = bits & 0x7fffffff;
  const uint32_t bounded = magnitude > kLeast ? magnitude : kLeast;
  const bool below = has_negative && static_cast<int32_t>(bits) < 0;
  const uint32_t entry = (below ? negative : positive)[(bounded >> 16) - kFirstPrefix];
  const uint32_t passed = bits << 16 > entry ? 1 : 0;  // the code in the lower bits does not matter
  return (below ? entry - passed : entry + passed) & 0xff;
}

// Like by_bucket(), but also for NaN, whose code is 255.
template <bool has_negative>
CONCORD_CODES_HOST_DEVICE inline uint32_t by_bucket_or_nan(const uint32_t* positive, const uint32_t* negative,
                                                           float fraction) {
  return fraction == fraction ? by_bucket<has_negative>(positive, negative, fraction) : kCount - 1;
}

#undef CONCORD_CODES_HOST_DEVICE

}  // namespace concord::codes
