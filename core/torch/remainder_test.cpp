// fp32 numbers as bf16 numbers with remainders, compared with the definition in integers and with libtorch's rounding.
#include "core/torch/remainder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <limits>

namespace concord::of_remainder {
namespace {

constexpr int64_t kHigh = 1 << 16;

struct Parts {
  at::Tensor high, low;
};

Parts parts_of(const at::Tensor& wide) {
  Parts parts{at::empty({wide.numel()}, at::kBFloat16), at::empty({wide.numel()}, at::kShort)};
  split_remainder(wide.clone(), parts.high, parts.low);
  return parts;
}

at::Tensor joined(const Parts& parts) {
  const at::Tensor wide = at::full({parts.low.numel()}, std::numeric_limits<float>::quiet_NaN(), at::kFloat);
  join_remainder(parts.high, parts.low, wide);
  return wide;
}

at::Tensor bits(const at::Tensor& wide) { return wide.view(at::kInt).to(at::kLong); }
at::Tensor of_bits(const at::Tensor& bits) { return bits.to(at::kInt).view(at::kFloat); }

// All 2^16 low halves below several high halves of both signs, with the smallest and the largest, and random numbers.
at::Tensor numbers() {
  std::vector<at::Tensor> all;
  for (const int64_t high : {0, 1, 0x3f80, 0x3f81, 0x42ff, 0x7f7f}) {
    for (const int64_t sign : {0, 0x8000}) all.push_back(at::arange(kHigh) + (high + sign) * kHigh - 2 * sign * kHigh);
  }
  const at::Tensor random = at::randint(0x7f800000, {1000}, at::TensorOptions(at::kLong));
  all.push_back(random);
  all.push_back(random - (int64_t{1} << 31));
  return of_bits(at::cat(all));
}

TEST(Remainder, PartsAreThoseOfTheDefinitionAndJoinToTheSameBits) {
  const at::Tensor wide = numbers();
  const Parts parts = parts_of(wide);
  const at::Tensor low = (bits(wide) + kHigh / 2).remainder(kHigh) - kHigh / 2;
  EXPECT_TRUE(parts.low.to(at::kLong).equal(low));
  // In 16 bits: the largest numbers are rounded to infinity, whose bits follow theirs.
  EXPECT_TRUE(parts.high.view(at::kShort).to(at::kLong).equal((bits(wide) - low).floor_divide(kHigh)));
  EXPECT_TRUE(bits(joined(parts)).equal(bits(wide)));
}

TEST(Remainder, TheHighPartIsRoundedToNearestEvenExceptOnTies) {
  const at::Tensor wide = numbers();
  const Parts parts = parts_of(wide);
  const at::Tensor differs = parts.high.view(at::kShort).ne(wide.to(at::kBFloat16).view(at::kShort));
  const at::Tensor is_tie = parts.low.eq(-kHigh / 2), is_odd = parts.high.view(at::kShort).bitwise_and(1).eq(1);
  EXPECT_TRUE(differs.equal(is_tie.logical_and(is_odd)));
  EXPECT_GT(differs.sum().item<int64_t>(), 0);
}

TEST(Remainder, NaNsAndInfinitiesStayWhatTheyAre) {
  const at::Tensor wide = of_bits(at::cat({at::full({1}, 0x7fffffff, at::kLong), at::full({1}, 0x7fc00000, at::kLong),
                                           at::full({1}, -0x400000, at::kLong), at::full({1}, 0x7f800000, at::kLong)}));
  const Parts parts = parts_of(wide);
  EXPECT_TRUE(parts.high.isnan().equal(wide.isnan()));
  EXPECT_TRUE(joined(parts).isnan().equal(wide.isnan()));
  EXPECT_TRUE(parts.high[3].isinf().item<bool>());
}

}  // namespace
}  // namespace concord::of_remainder
