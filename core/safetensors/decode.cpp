#include "core/safetensors/decode.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace concord::safetensors {
namespace {

double from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Returns a small float of |exponent_bits| and |mantissa_bits| with IEEE's bias and subnormal numbers; the caller
// handles an exponent of all ones.
double small_float(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const bool negative = ((bits >> (exponent_bits + mantissa_bits)) & 1) != 0;
  const double value = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                     : std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
  return negative ? -value : value;
}

// All ones in the exponent: infinity, or NaN if the mantissa is not 0.
double ieee_float(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t exponent = (bits >> mantissa_bits) & ((1u << exponent_bits) - 1);
  if (exponent != (1u << exponent_bits) - 1) return small_float(bits, exponent_bits, mantissa_bits);
  if ((bits & ((1u << mantissa_bits) - 1)) != 0) return std::numeric_limits<double>::quiet_NaN();
  const bool negative = ((bits >> (exponent_bits + mantissa_bits)) & 1) != 0;
  return negative ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
}

// Most are normal numbers, for which shifting the bits and changing the bias is several times as fast.
double from_f16(uint16_t bits) {
  const uint32_t exponent = (bits >> 10) & 31;
  if (exponent == 0 || exponent == 31) return ieee_float(bits, 5, 10);
  return std::bit_cast<float>(uint32_t{bits & 0x8000u} << 16 | (exponent + 112) << 23 | uint32_t{bits & 0x3ffu} << 13);
}
double from_f8_e5m2(uint8_t bits) { return ieee_float(bits, 5, 2); }
// Has no infinity; NaN is all ones.
double from_f8_e4m3(uint8_t bits) {
  return (bits & 0x7f) == 0x7f ? std::numeric_limits<double>::quiet_NaN() : small_float(bits, 4, 3);
}
// A power of two.
double from_f8_e8m0(uint8_t bits) {
  return bits == 0xff ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, bits - 127);
}

template <class Stored, class Out, class Convert>
void each(std::span<const std::byte> bytes, std::span<Out> out, const Convert& convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof stored, sizeof stored);
    out[i] = convert(stored);
  }
}

template <class Stored, class Out>
void plain(std::span<const std::byte> bytes, std::span<Out> out) {
  each<Stored>(bytes, out, [](Stored value) { return static_cast<Out>(value); });
}

template <class Out>
void integers(std::span<const std::byte> bytes, DType dtype, std::span<Out> out) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8: return plain<uint8_t>(bytes, out);
    case DType::kI8: return plain<int8_t>(bytes, out);
    case DType::kI16: return plain<int16_t>(bytes, out);
    case DType::kU16: return plain<uint16_t>(bytes, out);
    case DType::kI32: return plain<int32_t>(bytes, out);
    case DType::kU32: return plain<uint32_t>(bytes, out);
    case DType::kI64: return plain<int64_t>(bytes, out);
    default: return plain<uint64_t>(bytes, out);
  }
}

}  // namespace

bool is_integer(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kI16:
    case DType::kU16:
    case DType::kI32:
    case DType::kU32:
    case DType::kI64:
    case DType::kU64: return true;
    default: return false;
  }
}

void decode(std::span<const std::byte> bytes, DType dtype, std::span<double> out) {
  switch (dtype) {
    case DType::kF64: return plain<double>(bytes, out);
    case DType::kF32:
    case DType::kC64: return plain<float>(bytes, out);
    case DType::kBF16: return each<uint16_t>(bytes, out, from_bf16);
    case DType::kF16: return each<uint16_t>(bytes, out, from_f16);
    case DType::kF8E5M2: return each<uint8_t>(bytes, out, from_f8_e5m2);
    case DType::kF8E4M3: return each<uint8_t>(bytes, out, from_f8_e4m3);
    case DType::kF8E8M0: return each<uint8_t>(bytes, out, from_f8_e8m0);
    default: return integers(bytes, dtype, out);
  }
}

void decode_integers(std::span<const std::byte> bytes, DType dtype, std::span<WideInteger> out) {
  integers(bytes, dtype, out);
}

}  // namespace concord::safetensors
