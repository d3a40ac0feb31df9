#include "core/safetensors/encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/safetensors/decode.h"

namespace concord::safetensors {
namespace {

double decoded(uint16_t bits, DType dtype) {
  double value = 0;
  decode(std::as_bytes(std::span(&bits, 1)), dtype, std::span(&value, 1));
  return value;
}

uint16_t encoded(double value, DType dtype) {
  uint16_t bits = 0;
  encode(std::span(&value, 1), dtype, std::as_writable_bytes(std::span(&bits, 1)));
  return bits;
}

// Every number of the type, the midpoint between it and the next, and the values adjacent to the midpoint.
void expect_nearest_even(DType dtype, uint16_t infinity) {
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const auto low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
    const double a = decoded(low, dtype);
    const double b = high == infinity ? 2 * a - decoded(static_cast<uint16_t>(bits - 1), dtype) : decoded(high, dtype);
    const double middle = (a + b) / 2;
    const auto below = static_cast<double>(std::nextafter(static_cast<float>(middle), 0.0F));
    const auto above =
        static_cast<double>(std::nextafter(static_cast<float>(middle), std::numeric_limits<float>::max()));
    ASSERT_EQ(encoded(a, dtype), low) << a;
    ASSERT_EQ(encoded(-a, dtype), low | 0x8000) << -a;
    ASSERT_EQ(encoded(middle, dtype), bits % 2 == 0 ? low : high) << middle;
    ASSERT_EQ(encoded(-middle, dtype), (bits % 2 == 0 ? low : high) | 0x8000) << -middle;
    ASSERT_EQ(encoded(below, dtype), low) << below;
    ASSERT_EQ(encoded(above, dtype), high) << above;
  }
}

TEST(Encode, RoundsHalfsToTheNearestAndFromTheMiddleToTheEven) {
  expect_nearest_even(DType::kF16, 0x7c00);
  EXPECT_EQ(encoded(65519.9, DType::kF16), 0x7bff);
  EXPECT_EQ(encoded(65520, DType::kF16), 0x7c00);
  EXPECT_EQ(encoded(std::numeric_limits<float>::max(), DType::kF16), 0x7c00);
  EXPECT_EQ(encoded(std::numeric_limits<float>::denorm_min(), DType::kF16), 0);
}

TEST(Encode, RoundsBf16ToTheNearestAndFromTheMiddleToTheEven) {
  expect_nearest_even(DType::kBF16, 0x7f80);
  EXPECT_EQ(encoded(std::numeric_limits<float>::max(), DType::kBF16), 0x7f80);
}

TEST(Encode, KeepsInfinitiesAndNan) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    EXPECT_EQ(decoded(encoded(infinity, dtype), dtype), infinity);
    EXPECT_EQ(decoded(encoded(-infinity, dtype), dtype), -infinity);
    for (const uint32_t payload : {1u, 0x1fffu, 0x400000u, 0x7fffffu}) {
      for (const uint32_t sign : {0u, 0x80000000u}) {
        float nan = 0;
        const uint32_t bits = 0x7f800000 | payload | sign;
        std::memcpy(&nan, &bits, sizeof nan);
        EXPECT_TRUE(std::isnan(decoded(encoded(static_cast<double>(nan), dtype), dtype))) << payload;
      }
    }
  }
}

TEST(Encode, RoundsWiderTypesAndRefusesOthers) {
  const double value = 1 + 0x1p-30;
  float narrow = 0;
  encode(std::span(&value, 1), DType::kF32, std::as_writable_bytes(std::span(&narrow, 1)));
  EXPECT_EQ(narrow, 1.0F);
  double same = 0;
  encode(std::span(&value, 1), DType::kF64, std::as_writable_bytes(std::span(&same, 1)));
  EXPECT_EQ(same, value);
  EXPECT_THROW(encode(std::span(&value, 1), DType::kI64, std::as_writable_bytes(std::span(&same, 1))),
               std::logic_error);
  EXPECT_THROW(encode(std::span(&value, 1), DType::kF32, std::as_writable_bytes(std::span(&same, 1))),
               std::logic_error);
}

}  // namespace
}  // namespace concord::safetensors
