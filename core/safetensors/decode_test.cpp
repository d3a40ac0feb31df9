#include "core/safetensors/decode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace concord::safetensors {
namespace {

template <class Stored>
double one(DType dtype, Stored stored) {
  double value = 0;
  decode(std::as_bytes(std::span(&stored, 1)), dtype, {&value, 1});
  return value;
}

// Values from the formats' definitions.
TEST(SafetensorsDecode, KnowsTheFloatTypes) {
  EXPECT_EQ(one(DType::kF64, 1.25), 1.25);
  EXPECT_EQ(one(DType::kF32, -0.1f), static_cast<double>(-0.1f));
  EXPECT_EQ(one<uint16_t>(DType::kBF16, 0x3f80), 1);
  EXPECT_EQ(one<uint16_t>(DType::kBF16, 0xc049), -3.140625);
  EXPECT_EQ(one<uint16_t>(DType::kBF16, 0x0001), std::ldexp(1, -133));
  EXPECT_EQ(one<uint16_t>(DType::kF16, 0x3c00), 1);
  EXPECT_EQ(one<uint16_t>(DType::kF16, 0x7bff), 65504);
  EXPECT_EQ(one<uint16_t>(DType::kF16, 0x8001), -std::ldexp(1, -24));
  EXPECT_EQ(one<uint16_t>(DType::kF16, 0xfc00), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(one<uint16_t>(DType::kF16, 0x7e00)));
  EXPECT_EQ(one<uint8_t>(DType::kF8E5M2, 0x7b), 57344);
  EXPECT_EQ(one<uint8_t>(DType::kF8E5M2, 0x7c), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(one<uint8_t>(DType::kF8E5M2, 0x7f)));
  EXPECT_EQ(one<uint8_t>(DType::kF8E4M3, 0x7e), 448);
  EXPECT_EQ(one<uint8_t>(DType::kF8E4M3, 0x81), -std::ldexp(1, -9));
  EXPECT_TRUE(std::isnan(one<uint8_t>(DType::kF8E4M3, 0xff)));
  EXPECT_EQ(one<uint8_t>(DType::kF8E8M0, 0x80), 2);
  EXPECT_TRUE(std::isnan(one<uint8_t>(DType::kF8E8M0, 0xff)));
}

TEST(SafetensorsDecode, KnowsTheIntegers) {
  EXPECT_EQ(one<int8_t>(DType::kI8, -7), -7);
  EXPECT_EQ(one<uint8_t>(DType::kU8, 200), 200);
  EXPECT_EQ(one<uint8_t>(DType::kBool, 1), 1);
  EXPECT_EQ(one<int16_t>(DType::kI16, -300), -300);
  EXPECT_EQ(one<uint16_t>(DType::kU16, 60000), 60000);
  EXPECT_EQ(one<int32_t>(DType::kI32, -70000), -70000);
  EXPECT_EQ(one<uint32_t>(DType::kU32, 4000000000u), 4000000000.0);
  EXPECT_EQ(one<int64_t>(DType::kI64, -5000000000), -5000000000.0);
  const uint64_t large = UINT64_MAX;
  WideInteger wide = 0;
  decode_integers(std::as_bytes(std::span(&large, 1)), DType::kU64, {&wide, 1});
  EXPECT_TRUE(wide == static_cast<WideInteger>(UINT64_MAX));
  EXPECT_TRUE(is_integer(DType::kBool));
  EXPECT_FALSE(is_integer(DType::kC64));
}

TEST(SafetensorsDecode, GivesTwoNumbersForAComplexOne) {
  const float pair[] = {1.5f, -2.5f};
  std::vector<double> out(2);
  decode(std::as_bytes(std::span(pair)), DType::kC64, out);
  EXPECT_EQ(out, (std::vector<double>{1.5, -2.5}));
}

}  // namespace
}  // namespace concord::safetensors
