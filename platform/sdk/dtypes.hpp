// Element types for backends: sizes, names, and the conversions of the two 16-bit floats. Header-only.
// The conversions are also for device code (nvcc); they give the same bits everywhere, NaN payloads aside.
#pragma once

#include <cstdint>
#include <cstring>

#include "platform/sdk/plugin.hpp"

#if defined(__CUDACC__)
#define CONCORD_HOST_DEVICE __host__ __device__
#else
#define CONCORD_HOST_DEVICE
#endif

namespace concord::sdk {

inline constexpr const char* kDtypeNames = "f32, f64, bf16, f16, i8, i16, i32, i64, u8, bool (1 to 10)";
inline constexpr const char* kReduceNames = "sum, prod, min, max, avg (1 to 5)";

// The name of |dtype| for messages; "unknown" if it is invalid.
inline const char* dtype_name(concord_dtype dtype) {
  switch (dtype) {
    case CONCORD_DTYPE_F32: return "f32";
    case CONCORD_DTYPE_F64: return "f64";
    case CONCORD_DTYPE_BF16: return "bf16";
    case CONCORD_DTYPE_F16: return "f16";
    case CONCORD_DTYPE_I8: return "i8";
    case CONCORD_DTYPE_I16: return "i16";
    case CONCORD_DTYPE_I32: return "i32";
    case CONCORD_DTYPE_I64: return "i64";
    case CONCORD_DTYPE_U8: return "u8";
    case CONCORD_DTYPE_BOOL: return "bool";
    default: return "unknown";
  }
}

// Bytes of one element. Throws INVALID_ARGUMENT if |dtype| is invalid.
inline int64_t dtype_size(concord_dtype dtype) {
  switch (dtype) {
    case CONCORD_DTYPE_I8:
    case CONCORD_DTYPE_U8:
    case CONCORD_DTYPE_BOOL: return 1;
    case CONCORD_DTYPE_BF16:
    case CONCORD_DTYPE_F16:
    case CONCORD_DTYPE_I16: return 2;
    case CONCORD_DTYPE_F32:
    case CONCORD_DTYPE_I32: return 4;
    case CONCORD_DTYPE_F64:
    case CONCORD_DTYPE_I64: return 8;
    default: invalid(text("dtype %d is unknown; it must be one of %s", dtype, kDtypeNames));
  }
}

// The name of |reduce| for messages; "unknown" if it is invalid.
inline const char* reduce_name(concord_reduce_op reduce) {
  switch (reduce) {
    case CONCORD_REDUCE_SUM: return "sum";
    case CONCORD_REDUCE_PROD: return "prod";
    case CONCORD_REDUCE_MIN: return "min";
    case CONCORD_REDUCE_MAX: return "max";
    case CONCORD_REDUCE_AVG: return "avg";
    default: return "unknown";
  }
}

CONCORD_HOST_DEVICE inline uint32_t float_bits(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

CONCORD_HOST_DEVICE inline float float_from_bits(uint32_t bits) {
  float value = 0;
  memcpy(&value, &bits, sizeof value);
  return value;
}

CONCORD_HOST_DEVICE inline float bf16_to_float(uint16_t value) {
  return float_from_bits(static_cast<uint32_t>(value) << 16);
}

// Rounds to nearest, ties to even. A NaN stays one (made quiet, so that no payload is cut down to infinity).
CONCORD_HOST_DEVICE inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// The half conversions in integers: for device code and for compilers without a half type.
CONCORD_HOST_DEVICE inline float f16_to_float_portable(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000u) << 16;
  const uint32_t exponent = (value >> 10) & 0x1fu;
  const uint32_t mantissa = value & 0x3ffu;
  if (exponent == 0x1fu) {  // infinity, or a NaN, which is made quiet as the hardware does
    return float_from_bits(sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0u));
  }
  if (exponent != 0) return float_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // zero and denormals: exact
  return float_from_bits(sign | float_bits(magnitude));
}

CONCORD_HOST_DEVICE inline uint16_t float_to_f16_portable(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to multiples of 2^-24, a half's denormals
    return static_cast<uint16_t>(sign | (float_bits(float_from_bits(magnitude) + 0.5f) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// A half type of the host compiler, where C++ has one: it vectorises. __fp16 is only a storage format; that is enough.
#if !defined(__CUDACC__) && defined(__ARM_FP16_FORMAT_IEEE)
#define CONCORD_SDK_HALF __fp16
#elif !defined(__CUDACC__) && defined(__x86_64__) && defined(__FLT16_MAX__)
#define CONCORD_SDK_HALF _Float16
#endif

CONCORD_HOST_DEVICE inline float f16_to_float(uint16_t value) {
#if defined(CONCORD_SDK_HALF)
  CONCORD_SDK_HALF half;
  memcpy(&half, &value, sizeof half);
  return static_cast<float>(half);
#else
  return f16_to_float_portable(value);
#endif
}

// Rounds to nearest, ties to even; too large becomes infinity; a NaN stays one.
CONCORD_HOST_DEVICE inline uint16_t float_to_f16(float value) {
#if defined(CONCORD_SDK_HALF)
  const auto half = static_cast<CONCORD_SDK_HALF>(value);
  uint16_t bits = 0;
  memcpy(&bits, &half, sizeof bits);
  return bits;
#else
  return float_to_f16_portable(value);
#endif
}

}  // namespace concord::sdk
