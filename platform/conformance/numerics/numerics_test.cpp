#include "platform/conformance/numerics/numerics.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "platform/sdk/dtypes.hpp"

namespace concord::conformance {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

uint16_t encode16(concord_dtype dtype, double value) {
  uint16_t bits = 0;
  encode_floats(dtype, &value, 1, &bits);
  return bits;
}

double decode16(concord_dtype dtype, uint16_t bits) {
  double value = 0;
  decode_floats(dtype, &bits, 1, &value);
  return value;
}

// Two independent implementations.
TEST(Numerics, SixteenBitFloatsAgreeWithTheAuthorKitOnEveryPattern) {
  for (uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const double bf16 = decode16(CONCORD_DTYPE_BF16, bits);
    const double f16 = decode16(CONCORD_DTYPE_F16, bits);
    const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    ASSERT_TRUE(same(bf16, static_cast<double>(sdk::bf16_to_float(bits)))) << pattern;
    ASSERT_TRUE(same(f16, static_cast<double>(sdk::f16_to_float(bits)))) << pattern;
    ASSERT_TRUE(std::isnan(bf16) || encode16(CONCORD_DTYPE_BF16, bf16) == bits) << pattern;
    ASSERT_TRUE(std::isnan(f16) || encode16(CONCORD_DTYPE_F16, f16) == bits) << pattern;
  }
}

TEST(Numerics, RoundingAgreesWithTheAuthorKitBetweenTheNumbers) {
  for (uint32_t i = 0; i < 2000000; ++i) {
    const auto value = std::bit_cast<float>(i * 2147u + 12345u);
    if (std::isnan(value)) continue;
    ASSERT_EQ(encode16(CONCORD_DTYPE_BF16, static_cast<double>(value)), sdk::float_to_bf16(value)) << value;
    ASSERT_EQ(encode16(CONCORD_DTYPE_F16, static_cast<double>(value)), sdk::float_to_f16(value)) << value;
  }
}

TEST(Numerics, TiesGoToTheEvenNumber) {
  EXPECT_EQ(decode16(CONCORD_DTYPE_BF16, encode16(CONCORD_DTYPE_BF16, 1 + 0x1p-8)), 1);
  EXPECT_EQ(decode16(CONCORD_DTYPE_BF16, encode16(CONCORD_DTYPE_BF16, 1 + 3 * 0x1p-8)), 1 + 0x1p-6);
  EXPECT_EQ(decode16(CONCORD_DTYPE_F16, encode16(CONCORD_DTYPE_F16, 65519.99)), 65504);
  EXPECT_EQ(decode16(CONCORD_DTYPE_F16, encode16(CONCORD_DTYPE_F16, 65520)), kInfinity);
}

double share(concord_dtype dtype, concord_reduce_op reduce, std::vector<double> elements, double got) {
  return share_of_bound(dtype, reduce_floats(dtype, reduce, elements.data(), static_cast<int>(elements.size())), got);
}

TEST(Numerics, CorrectlyRoundedSumsAreWithinTheBoundAndTheNextNumbersAreNot) {
  const double sum = 1.0 + static_cast<double>(1e-8f);
  EXPECT_LE(share(CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, {1.0, static_cast<double>(1e-8f)},
                  static_cast<double>(static_cast<float>(sum))),
            1);
  EXPECT_GT(share(CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, {1.0, static_cast<double>(1e-8f)}, 1 + 0x1p-22), 1);
  EXPECT_LE(share(CONCORD_DTYPE_BF16, CONCORD_REDUCE_SUM, {1.0, 0x1p-8}, 1.0), 1);
  EXPECT_GT(share(CONCORD_DTYPE_BF16, CONCORD_REDUCE_SUM, {1.0, 1.5 * 0x1p-7}, 1.0), 1) << "rounded towards zero";
}

TEST(Numerics, OneRankIsExact) {
  for (const concord_reduce_op reduce : kAllReductions) {
    EXPECT_EQ(share(CONCORD_DTYPE_F32, reduce, {0.1f}, static_cast<double>(0.1f)), 0);
    EXPECT_GT(share(CONCORD_DTYPE_F32, reduce, {0.1f}, std::nextafter(static_cast<double>(0.1f), 1)), 1);
  }
}

TEST(Numerics, SumsOfDoublesAreTakenBeyondDoublePrecision) {
  const double elements[] = {1e16, 1.0, -1e16};
  EXPECT_EQ(reduce_floats(CONCORD_DTYPE_F64, CONCORD_REDUCE_SUM, elements, 3).exact, 1.0);
}

TEST(Numerics, NanAndInfinityFollowTheRules) {
  const double nan = std::nan("");
  EXPECT_EQ(share(CONCORD_DTYPE_F32, CONCORD_REDUCE_MIN, {1.0, nan}, nan), 0);
  EXPECT_GT(share(CONCORD_DTYPE_F32, CONCORD_REDUCE_MIN, {1.0, nan}, 1.0), 1);
  EXPECT_GT(share(CONCORD_DTYPE_F32, CONCORD_REDUCE_MAX, {1.0, 2.0}, nan), 1);
  EXPECT_EQ(share(CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, {kInfinity, -kInfinity}, nan), 0);
  EXPECT_GT(share(CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, {kInfinity, 1.0}, 1.0), 1);
  const double largest = format_of(CONCORD_DTYPE_F32).largest;
  EXPECT_LE(share(CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, {largest, largest}, kInfinity), 1);
  EXPECT_GT(share(CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, {largest, largest}, -kInfinity), 1);
  EXPECT_GT(share(CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, {1.0, 1.0}, kInfinity), 1);
}

int64_t reduced(concord_dtype dtype, concord_reduce_op reduce, std::vector<int64_t> elements) {
  return reduce_integers(dtype, reduce, elements.data(), static_cast<int>(elements.size()));
}

TEST(Numerics, IntegersWrapAndAveragesAreCutTowardsZero) {
  EXPECT_EQ(reduced(CONCORD_DTYPE_I8, CONCORD_REDUCE_SUM, {127, 1}), -128);
  EXPECT_EQ(reduced(CONCORD_DTYPE_U8, CONCORD_REDUCE_SUM, {255, 2}), 1);
  EXPECT_EQ(reduced(CONCORD_DTYPE_I16, CONCORD_REDUCE_PROD, {256, 256}), 0);
  EXPECT_EQ(reduced(CONCORD_DTYPE_I32, CONCORD_REDUCE_AVG, {-4, -3}), -3);
  EXPECT_EQ(reduced(CONCORD_DTYPE_I64, CONCORD_REDUCE_MIN, {INT64_MIN, 0, INT64_MAX}), INT64_MIN);
  EXPECT_EQ(reduced(CONCORD_DTYPE_BOOL, CONCORD_REDUCE_SUM, {1, 1}), 1);
  EXPECT_EQ(reduced(CONCORD_DTYPE_BOOL, CONCORD_REDUCE_PROD, {1, 0}), 0);
}

}  // namespace
}  // namespace concord::conformance
