// The random numbers: words against the published vectors, values against exact distributions, and both frozen.
#include "platform/sdk/philox.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "platform/sdk/checks.hpp"

namespace concord::sdk {
namespace {

constexpr int kSamples = 200000;

concord_rng_request request_of(concord_rng_kind kind, concord_dtype dtype, double low, double high) {
  concord_rng_request request{};
  request.struct_size = sizeof request;
  request.kind = kind;
  request.dtype = dtype;
  request.low = low;
  request.high = high;
  return request;
}

// Values 0 .. count-1 as doubles.
template <class Generator>
std::vector<double> sample(const Generator& generator, uint64_t key, uint64_t subsequence = 0, int count = kSamples) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(value_at(generator, key, subsequence, i));
  }
  return values;
}

// Kolmogorov-Smirnov: sqrt(n) times the largest distance between the samples' distribution and |cdf|. Above 1.95 in one
// of a thousand right generators; the seeds here are fixed, so a test that passed once passes always.
template <class Cdf>
double distance_from(std::vector<double> values, Cdf&& cdf) {
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double exact = cdf(values[i]);
    largest = std::max({largest, exact - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - exact});
  }
  return largest * std::sqrt(n);
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double moment_of(const std::vector<double>& values, double centre, int power) {
  double sum = 0;
  for (double value : values) sum += std::pow(value - centre, power);
  return sum / static_cast<double>(values.size());
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }

// The z whose upper tail is |tail|, in double: bisection on erfc, and its series where 1/2 - tail is small.
double exact_quantile(long double tail) {
  const auto centre = static_cast<double>(0.5L - tail);
  if (centre < 1e-3) {
    const double u = centre * std::sqrt(2 * std::numbers::pi);
    return u + std::pow(u, 3) / 6 + 7 * std::pow(u, 5) / 120;
  }
  double low = 0, high = 12;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (normal_cdf(-middle) > static_cast<double>(tail) ? low : high) = middle;
  }
  return (low + high) / 2;
}

// kat_vectors of Random123, the reference implementation of Philox by its authors.
TEST(Philox, WordsEqualThePublishedKnownAnswers) {
  const auto expect = [](PhiloxBlock counter, uint32_t k0, uint32_t k1, PhiloxBlock answer) {
    const PhiloxBlock block = philox(counter, k0, k1);
    for (int w = 0; w < 4; ++w) EXPECT_EQ(block.word[w], answer.word[w]) << "word " << w;
  };
  expect({{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff,
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(Philox, KeySubsequenceAndBlockGoToTheirWords) {
  const PhiloxBlock block = philox_block(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88);
  EXPECT_EQ(block.word[0], 0xd16cfe09u);
  EXPECT_EQ(block.word[3], 0x24126ea1u);
}

TEST(Philox, PositionsTakeTheirWordsInOrder) {
  for (uint64_t position = 0; position < 64; ++position) {
    const PhiloxBlock of_one = philox_block(7, 9, position / 4);
    EXPECT_EQ(static_cast<uint32_t>(value_at(BitsI32(), 7, 9, position)), of_one.word[position % 4]);
    const PhiloxBlock of_two = philox_block(7, 9, position / 2);
    const uint64_t low = of_two.word[position % 2 * 2], high = of_two.word[position % 2 * 2 + 1];
    EXPECT_EQ(static_cast<uint64_t>(value_at(BitsI64(), 7, 9, position)), low | high << 32);
  }
}

TEST(Philox, NormalQuantileIsWithinItsStatedErrorOfTheExactOne) {
  double worst = 0;
  for (uint64_t i = 0; i < 300000; ++i) {  // words shifted, so that both ends of the range are met often
    const PhiloxBlock block = philox_block(1, 2, i);
    uint64_t bits = (block.word[0] | static_cast<uint64_t>(block.word[1]) << 32) >> (block.word[2] % 64);
    if (block.word[3] & 1) bits = ~bits;
    const auto high = static_cast<uint32_t>(bits >> 32) & 0x7fffffffu;
    const auto low = static_cast<uint32_t>(bits);
    const long double tail = (static_cast<long double>(static_cast<uint64_t>(high) << 31 | low >> 1) + 0.5L) * 0x1p-63L;
    const double exact = exact_quantile(tail);
    const double error = std::fabs(static_cast<double>(standard_normal(low, high)) - exact) / exact;
    ASSERT_FALSE(std::isnan(error)) << i;  // std::max passes over it
    worst = std::max(worst, error);
  }
  RecordProperty("worst_relative_error", std::to_string(worst));
  EXPECT_LE(worst, 5e-7);
  EXPECT_GT(worst, 1e-8) << "a float cannot be this exact: the comparison compares nothing";
}

TEST(Philox, NormalExtremesAreFiniteAndSymmetric) {
  EXPECT_NEAR(static_cast<double>(standard_normal(0, 0)), 9.08, 0.01);
  EXPECT_EQ(standard_normal(0, 0x80000000u), -standard_normal(0, 0));
  EXPECT_GT(standard_normal(0xffffffffu, 0x7fffffffu), 0.0f);
  EXPECT_LT(standard_normal(0xffffffffu, 0x7fffffffu), 1e-18f);
}

TEST(Philox, UniformF32HasTheMomentsAndTheDistributionOfItsRange) {
  const auto values = sample(UniformF32(-2, 3), 11);
  EXPECT_NEAR(mean_of(values), 0.5, 4 * std::sqrt(25.0 / 12 / kSamples));
  EXPECT_NEAR(moment_of(values, 0.5, 2), 25.0 / 12, 0.02);
  EXPECT_LT(distance_from(values, [](double x) { return (x + 2) / 5; }), 1.95);
}

TEST(Philox, UniformF64HasTheMomentsAndTheDistributionOfItsRange) {
  const auto values = sample(UniformF64(0, 1), 12);
  EXPECT_NEAR(mean_of(values), 0.5, 4 * std::sqrt(1.0 / 12 / kSamples));
  EXPECT_LT(distance_from(values, [](double x) { return x; }), 1.95);
}

TEST(Philox, NormalHasTheMomentsAndTheDistributionOfMeanAndDeviation) {
  const auto values = sample(NormalF32(1, 2), 13);
  EXPECT_NEAR(mean_of(values), 1, 4 * 2 / std::sqrt(kSamples));
  EXPECT_NEAR(moment_of(values, 1, 2), 4, 4 * 4 * std::sqrt(2.0 / kSamples));
  EXPECT_NEAR(moment_of(values, 1, 3) / 8, 0, 4 * std::sqrt(15.0 / kSamples));
  EXPECT_NEAR(moment_of(values, 1, 4) / 16, 3, 4 * std::sqrt(96.0 / kSamples));
  EXPECT_LT(distance_from(values, [](double x) { return normal_cdf((x - 1) / 2); }), 1.95);
}

TEST(Philox, NormalTailsHaveTheirShare) {
  const auto values = sample(NormalF32(0, 1), 14, 0, 2000000);
  for (double z : {1.0, 2.0, 3.0, 4.0}) {
    const double share = 2 * normal_cdf(-z) * static_cast<double>(values.size());
    const auto found = std::count_if(values.begin(), values.end(), [z](double x) { return std::fabs(x) > z; });
    EXPECT_NEAR(static_cast<double>(found), share, 4 * std::sqrt(share)) << "beyond " << z;
  }
}

TEST(Philox, IntegersAreEvenlySpreadOverARangeThatIsNoPowerOfTwo) {
  std::vector<double> counts(7, 0.0);
  for (double value : sample(IntegerIn<int32_t>(-3, 4), 15)) counts[static_cast<size_t>(value + 3)] += 1;
  const double expected = kSamples / 7.0;
  double chi_square = 0;
  for (double count : counts) chi_square += (count - expected) * (count - expected) / expected;
  EXPECT_LT(chi_square, 22.5);  // 6 degrees of freedom: one right generator of a thousand is above
  EXPECT_GT(chi_square, 0.3);   // and one of a thousand below: too even is not an accident either
}

TEST(Philox, IntegersCoverTheWholeOf64Bits) {
  const auto values = sample(IntegerIn<int64_t>(INT64_MIN, INT64_MAX), 16);
  const double width = std::ldexp(1.0, 64);
  EXPECT_LT(distance_from(values, [width](double x) { return (x + width / 2) / width; }), 1.95);
}

TEST(Philox, NeighboursSubsequencesAndKeysAreUncorrelated) {
  const auto correlation = [](const std::vector<double>& a, const std::vector<double>& b, size_t shift) {
    double sum = 0;
    for (size_t i = shift; i < a.size(); ++i) sum += a[i] * b[i - shift];
    return sum / std::sqrt(static_cast<double>(a.size()));  // standard normal for independent standard normals
  };
  const auto values = sample(NormalF32(0, 1), 17);
  for (size_t shift = 1; shift <= 8; ++shift) EXPECT_LT(std::fabs(correlation(values, values, shift)), 4) << shift;
  EXPECT_LT(std::fabs(correlation(values, sample(NormalF32(0, 1), 17, 1), 0)), 4);
  EXPECT_LT(std::fabs(correlation(values, sample(NormalF32(0, 1), 18), 0)), 4);
}

TEST(Philox, UniformNeverReachesHighAndAlwaysStaysAtOrAboveLow) {
  const uint32_t all_ones[] = {0xffffffffu, 0xffffffffu};
  const uint32_t zeros[] = {0, 0};
  for (auto [low, high] : {std::pair{0.0, 1.0}, {-1.0, 1e-30}, {1e7, 1e7 + 1}, {-3e38, -2e38}, {0.0, 1e-45}}) {
    EXPECT_LT(UniformF32(low, high).at(all_ones), static_cast<float>(high)) << low << " " << high;
    EXPECT_GE(UniformF32(low, high).at(all_ones), static_cast<float>(low));
    EXPECT_EQ(UniformF32(low, high).at(zeros), static_cast<float>(low));
    EXPECT_LT(UniformF64(low, high).at(all_ones), high);
    EXPECT_EQ(UniformF64(low, high).at(zeros), low);
  }
  EXPECT_EQ(UniformF32(2, 2).at(all_ones), 2.0f);
  EXPECT_EQ(UniformF64(2, 2).at(all_ones), 2.0);
}

TEST(Philox, SixteenBitValuesAreTheF32ValueRoundedToNearest) {
  for (uint64_t i = 0; i < 1000; ++i) {
    const float normal = value_at(NormalF32(0, 1), 3, 4, i);
    EXPECT_EQ(value_at(AsBf16<NormalF32>(0, 1), 3, 4, i), float_to_bf16(normal));
    EXPECT_EQ(value_at(AsF16<NormalF32>(0, 1), 3, 4, i), float_to_f16(normal));
    EXPECT_EQ(value_at(AsF64<NormalF32>(0, 1), 3, 4, i), static_cast<double>(normal));
    EXPECT_EQ(value_at(AsBf16<UniformF32>(0, 1), 3, 4, i), float_to_bf16(value_at(UniformF32(0, 1), 3, 4, i)));
  }
}

// Frozen output of this definition, not of another implementation: a change of it breaks every stored state of a
// generator and the equality between vendors, so it has to be noticed. The words themselves have the answers above.
struct Frozen {
  concord_rng_kind kind;
  concord_dtype dtype;
  uint64_t bits[4];  // of positions 5 to 8
  uint64_t hash;     // FNV-1a over the bits of positions 5 to 65540, for roundings that are rarely different
};

constexpr Frozen kFrozen[] = {
    {CONCORD_RNG_BITS, CONCORD_DTYPE_I32, {0xfd665716, 0x9889fa3d, 0x5e7cce2, 0x1423ad26}, 0x75384e8877828e00},
    {CONCORD_RNG_BITS,
     CONCORD_DTYPE_I64,
     {0xa4acca78f1351dec, 0x786e5e26fc2a65fe, 0xf83fcb9c0d17eb5c, 0x1cebc08f3cc25ae9},
     0x25260376c4a90e41},
    {CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F32, {0x3f9db98c, 0x3f0af176, 0xbeeb54b6, 0xbeb98322}, 0x7c6b00ae325da08f},
    {CONCORD_RNG_UNIFORM,
     CONCORD_DTYPE_F64,
     {0x3fe405cc4a74c39e, 0x3fd4b049310e528a, 0x3ff326fa45116e9d, 0xbfd358dbc1556afa},
     0x210336f4fc70086},
    {CONCORD_RNG_UNIFORM, CONCORD_DTYPE_BF16, {0x3f9e, 0x3f0b, 0xbeeb, 0xbeba}, 0xe00f02f53124ecd4},
    {CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F16, {0x3cee, 0x3858, 0xb75b, 0xb5cc}, 0x10b379b05614a64e},
    {CONCORD_RNG_NORMAL, CONCORD_DTYPE_F32, {0xbfea865a, 0xbed0868e, 0xbf184f0f, 0x3f81bd4e}, 0x324a58a6efbe0eb0},
    {CONCORD_RNG_NORMAL,
     CONCORD_DTYPE_F64,
     {0xbffd50cb40000000, 0xbfda10d1c0000000, 0xbfe309e1e0000000, 0x3ff037a9c0000000},
     0xed05f36d05b62325},
    {CONCORD_RNG_NORMAL, CONCORD_DTYPE_BF16, {0xbfeb, 0xbed1, 0xbf18, 0x3f82}, 0x8c4a242f5bbf8cda},
    {CONCORD_RNG_NORMAL, CONCORD_DTYPE_F16, {0xbf54, 0xb684, 0xb8c2, 0x3c0e}, 0x6b5622436a41542a},
    {CONCORD_RNG_INTEGER, CONCORD_DTYPE_I32, {0x2657632b, 0x1c0a3f10, 0x39ccce18, 0x6bbce8e}, 0xab06755e997be96e},
    {CONCORD_RNG_INTEGER, CONCORD_DTYPE_I64, {0x2657632b, 0x1c0a3f10, 0x39ccce18, 0x6bbce8e}, 0xab06755e997be96e},
};

template <class Generator>
uint64_t bits_at(const Generator& generator, uint64_t position) {
  const auto value = value_at(generator, 0x0123456789abcdef, 42, position);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

TEST(Philox, ValuesOfEveryKindAndTypeAreTheFrozenOnes) {
  for (const Frozen& frozen : kFrozen) {
    SCOPED_TRACE(text("kind %d of %s", frozen.kind, dtype_name(frozen.dtype)));
    auto request = request_of(frozen.kind, frozen.dtype, -0.5, 1.25);
    request.integer_low = -1000;
    request.integer_high = 1000000007;
    visit_rng(request, [&](const auto& generator) {
      for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(bits_at(generator, 5 + i), frozen.bits[i]) << i;
      uint64_t hash = 0xcbf29ce484222325;
      for (uint64_t i = 0; i < 65536; ++i) hash = (hash ^ bits_at(generator, 5 + i)) * 0x100000001b3;
      EXPECT_EQ(hash, frozen.hash);
    });
  }
}

TEST(Philox, EveryKindAndTypeOfTheContractHasAGeneratorAndNoOther) {
  for (concord_rng_kind kind = 0; kind <= 5; ++kind) {
    for (concord_dtype dtype = 0; dtype <= 11; ++dtype) {
      auto request = request_of(kind, dtype, 0, 1);
      request.integer_high = 10;
      bool visited = false;
      const auto visit = [&] { visit_rng(request, [&](const auto&) { visited = true; }); };
      if (rng_has(kind, dtype)) {
        visit();
        EXPECT_TRUE(visited) << kind << " " << dtype;
      } else {
        EXPECT_THROW(visit(), Failure) << kind << " " << dtype;
      }
    }
  }
}

}  // namespace
}  // namespace concord::sdk
