#include "core/optim/grad_norm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace concord {
namespace {

std::vector<float> numbers(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(i % 7 == 0 ? 0.0f : static_cast<float>(i % 13) - 6.5f);
  return values;
}

TEST(GradNorm, SumsSquaresAndZerosOfAllParts) {
  const std::vector<float> a = numbers(40001), b = numbers(5);
  double squares = 0;
  int64_t zeros = 0;
  for (const auto* part : {&a, &b}) {
    for (const float value : *part) squares += double(value) * double(value), zeros += value == 0;
  }
  const std::vector<GradPart> parts{{{a.data(), FlatType::f32}, 40001}, {{b.data(), FlatType::f32}, 5}};
  EXPECT_EQ(sum_grads(parts, true).squares, squares);  // multiples of 1/4: exact
  EXPECT_EQ(sum_grads(parts, true).zeros, zeros);
  EXPECT_EQ(sum_grads(parts, false).zeros, 0);
}

TEST(GradNorm, BitsDoNotDependOnThreads) {
  std::vector<float> values;
  for (int i = 0; i < 300000; ++i) values.push_back(1 / (1 + static_cast<float>(i)));
  const std::vector<GradPart> parts{{{values.data(), FlatType::f32}, 300000}};
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const double one = sum_grads(parts, false).squares;
  at::set_num_threads(4);
  const double four = sum_grads(parts, false).squares;
  at::set_num_threads(before);
  EXPECT_EQ(one, four);
}

TEST(GradNorm, OneBadElementMakesTheSumNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values = numbers(1000);
    values[997] = bad;
    EXPECT_FALSE(std::isfinite(sum_grads({{{values.data(), FlatType::f32}, 1000}}, false).squares));
  }
}

TEST(GradNorm, SixteenBitGradientsAreWidened) {
  const std::vector<c10::BFloat16> values(100, c10::BFloat16(0.5f));
  EXPECT_EQ(sum_grads({{{values.data(), FlatType::bf16}, 100}}, false).squares, 25);
  const std::vector<c10::Half> halves(100, rounded<c10::Half>(0.5f));
  EXPECT_EQ(sum_grads({{{halves.data(), FlatType::f16}, 100}}, false).squares, 25);
}

TEST(GradNorm, ClippingScalesOnlyWhatIsTooLong) {
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_NEAR(clip_factor(4, 1), 0.25, 1e-6);
  EXPECT_EQ(clip_factor(1e9, 0), 1);
}

}  // namespace
}  // namespace concord
