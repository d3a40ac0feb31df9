#include "backends/cuda/staging.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace concord::cuda {
namespace {

// min and max as the ABI defines them: NaN wins, else the smaller or larger value.
float reference(float a, float b, bool maximum) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<float>::quiet_NaN();
  return maximum ? std::max(a, b) : std::min(a, b);
}

template <class Codec, class ToFloat>
void check_all_pairs(const std::vector<uint16_t>& patterns, bool maximum, ToFloat to_float) {
  for (const uint16_t a : patterns) {
    for (const uint16_t b : patterns) {
      const auto x = Codec::encode(static_cast<int16_t>(a));
      const auto y = Codec::encode(static_cast<int16_t>(b));
      const float got = to_float(static_cast<uint16_t>(Codec::decode(maximum ? std::max(x, y) : std::min(x, y))));
      const float want = reference(to_float(a), to_float(b), maximum);
      if (std::isnan(want) ? !std::isnan(got) : got != want) {
        FAIL() << "of 0x" << std::hex << a << " and 0x" << b << ": " << got << ", not " << want;
      }
    }
  }
}

// Every sign and exponent, with the mantissas at the ends.
std::vector<uint16_t> edge_patterns(int mantissa_bits) {
  std::vector<uint16_t> patterns;
  const int mantissas = 1 << mantissa_bits;
  for (int upper = 0; upper < 0x10000 / mantissas; ++upper) {
    for (const int mantissa : {0, 1, mantissas / 2, mantissas - 1}) {
      patterns.push_back(static_cast<uint16_t>(upper * mantissas + mantissa));
    }
  }
  return patterns;
}

TEST(Staging, MaxAndMinOfBf16KeepOrderAndNan) {
  const auto to_float = [](uint16_t bits) { return sdk::bf16_to_float(bits); };
  check_all_pairs<FloatOrder<Bf16Format, true>>(edge_patterns(7), true, to_float);
  check_all_pairs<FloatOrder<Bf16Format, false>>(edge_patterns(7), false, to_float);
}

TEST(Staging, MaxAndMinOfF16KeepOrderAndNan) {
  const auto to_float = [](uint16_t bits) { return sdk::f16_to_float_portable(bits); };
  check_all_pairs<FloatOrder<F16Format, true>>(edge_patterns(10), true, to_float);
  check_all_pairs<FloatOrder<F16Format, false>>(edge_patterns(10), false, to_float);
}

TEST(Staging, EveryF16ComesBackBitForBitUnlessItIsNan) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto value = static_cast<int16_t>(bits);
    const bool nan = (bits & 0x7fff) > 0x7c00;
    const int16_t back = FloatOrder<F16Format, true>::decode(FloatOrder<F16Format, true>::encode(value));
    ASSERT_EQ(back, nan ? F16Format::kNan : value) << bits;
  }
}

template <class Format, class Real>
void check_reals(bool maximum) {
  const auto inf = std::numeric_limits<Real>::infinity();
  const auto nan = std::numeric_limits<Real>::quiet_NaN();
  const Real values[] = {-inf,     std::numeric_limits<Real>::lowest(),
                         Real(-1), -std::numeric_limits<Real>::denorm_min(),
                         Real(0),  std::numeric_limits<Real>::denorm_min(),
                         Real(1),  std::numeric_limits<Real>::max(),
                         inf,      nan,
                         -nan};
  using Max = FloatOrder<Format, true>;
  using Min = FloatOrder<Format, false>;
  const auto bits = [](Real value) { return std::bit_cast<typename Format::Value>(value); };
  for (const Real a : values) {
    for (const Real b : values) {
      const auto code = maximum ? Max::decode(std::max(Max::encode(bits(a)), Max::encode(bits(b))))
                                : Min::decode(std::min(Min::encode(bits(a)), Min::encode(bits(b))));
      const Real got = std::bit_cast<Real>(code);
      if (std::isnan(a) || std::isnan(b)) {
        EXPECT_TRUE(std::isnan(got)) << a << " " << b;
      } else {
        EXPECT_EQ(got, maximum ? std::max(a, b) : std::min(a, b)) << a << " " << b;
      }
    }
  }
}

TEST(Staging, MaxAndMinOfF32AndF64KeepOrderAndNan) {
  check_reals<F32Format, float>(true);
  check_reals<F32Format, float>(false);
  check_reals<F64Format, double>(true);
  check_reals<F64Format, double>(false);
}

TEST(Staging, SumsOfI16WrapAsI16) {
  const int32_t sum = WideI16::encode(30000) + WideI16::encode(30000);
  EXPECT_EQ(WideI16::decode(sum), static_cast<int16_t>(60000 - 65536));
}

}  // namespace
}  // namespace concord::cuda
