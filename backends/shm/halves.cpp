#include "backends/shm/halves.h"

#include "platform/sdk/dtypes.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

namespace concord::shm {
namespace {

// Both return how many elements they have converted, from the start; the rest is done one by one.
#if defined(__aarch64__)

int64_t convert_many(float* out, const uint16_t* in, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(in + i));
    vst1q_f32(out + i, vcvt_f32_f16(vget_low_f16(halves)));
    vst1q_f32(out + i + 4, vcvt_high_f32_f16(halves));
  }
  return i;
}

int64_t convert_many(uint16_t* out, const float* in, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const float16x4_t low = vcvt_f16_f32(vld1q_f32(in + i));
    vst1q_u16(out + i, vreinterpretq_u16_f16(vcvt_high_f16_f32(low, vld1q_f32(in + i + 4))));
  }
  return i;
}

#elif defined(__x86_64__)

bool has_f16c() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;  // every processor with AVX2 has F16C
  return has;
}

__attribute__((target("avx,f16c"))) int64_t convert_by_f16c(float* out, const uint16_t* in, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  }
  return i;
}

__attribute__((target("avx,f16c"))) int64_t convert_by_f16c(uint16_t* out, const float* in, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), halves);
  }
  return i;
}

int64_t convert_many(float* out, const uint16_t* in, int64_t count) {
  return has_f16c() ? convert_by_f16c(out, in, count) : 0;
}
int64_t convert_many(uint16_t* out, const float* in, int64_t count) {
  return has_f16c() ? convert_by_f16c(out, in, count) : 0;
}

#else

int64_t convert_many(float*, const uint16_t*, int64_t) { return 0; }
int64_t convert_many(uint16_t*, const float*, int64_t) { return 0; }

#endif

}  // namespace

void halves_to_floats(float* out, const uint16_t* in, int64_t count) {
  for (int64_t i = convert_many(out, in, count); i < count; ++i) out[i] = sdk::f16_to_float(in[i]);
}

void floats_to_halves(uint16_t* out, const float* in, int64_t count) {
  for (int64_t i = convert_many(out, in, count); i < count; ++i) out[i] = sdk::float_to_f16(in[i]);
}

}  // namespace concord::shm
