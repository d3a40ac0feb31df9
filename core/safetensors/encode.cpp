#include "core/safetensors/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace concord::safetensors {
namespace {

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fc0;
  const uint32_t is_odd = (bits >> 16) & 1;  // ties to even
  return static_cast<uint16_t>((bits + 0x7fff + is_odd) >> 16);
}

// The addition rounds: |base| aligns the last bit of the sum with that of the half. Scaling up and down makes values
// that are too large for a half infinite.
uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t twice = bits << 1, sign = (bits >> 16) & 0x8000;
  if (twice > 0xff000000) return static_cast<uint16_t>(sign | 0x7e00);           // NaN
  const uint32_t exponent = std::max<uint32_t>(twice & 0xff000000, 0x71000000);  // 2^-14: below it halfs are subnormal
  const float base = std::bit_cast<float>((exponent >> 1) + 0x07800000);
  const auto sum = std::bit_cast<uint32_t>(base + std::fabs(value) * 0x1p+112F * 0x1p-110F);
  return static_cast<uint16_t>(sign | (((sum >> 13) & 0x7c00) + (sum & 0x0fff)));
}

template <class Convert>
void each(std::span<const double> values, std::span<std::byte> out, const Convert& convert) {
  for (size_t i = 0; i < values.size(); ++i) {
    const auto stored = convert(values[i]);
    std::memcpy(out.data() + i * sizeof stored, &stored, sizeof stored);
  }
}

}  // namespace

bool is_weight_type(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

void encode(std::span<const double> values, DType dtype, std::span<std::byte> out) {
  if (!is_weight_type(dtype) || out.size() != values.size() * static_cast<size_t>(size_of(dtype))) {
    throw std::logic_error("encode: not a type of weights, or another number of bytes");
  }
  switch (dtype) {
    case DType::kF64: return each(values, out, [](double value) { return value; });
    case DType::kF32: return each(values, out, [](double value) { return static_cast<float>(value); });
    case DType::kBF16: return each(values, out, [](double value) { return to_bf16(static_cast<float>(value)); });
    default: return each(values, out, [](double value) { return to_f16(static_cast<float>(value)); });
  }
}

}  // namespace concord::safetensors
