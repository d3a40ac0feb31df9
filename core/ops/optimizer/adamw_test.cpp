#include "core/ops/optimizer/adamw.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/ops/testing/samples.h"
#include "core/optim/adamw.h"
#include "core/optim/grad_norm.h"

namespace concord::ops::testing::of_adamw {
namespace {

// Returns nullopt, a finite factor, or one with which nothing is updated.
c10::IValue draw_factor(Draw& draw) {
  constexpr double kFactors[] = {0.25, std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity()};
  const int64_t which = draw.between(-2, 2);
  return which < 0 ? c10::IValue() : c10::IValue(at::tensor({kFactors[which]}, at::kFloat));
}

// Tensors of the weights' type, some of them unaligned parts of a flat buffer, with or without 16-bit values.
Sample draw_adamw(Draw& draw, c10::ScalarType type) {
  const auto sums = type == at::kDouble ? type : at::kFloat;
  const bool narrow = type == at::kBFloat16 || type == at::kHalf;
  c10::List<at::Tensor> weights, m, v, values, grads;
  const int64_t tensors = draw.between(1, 3);
  for (int64_t i = 0; i < tensors; ++i) {
    const int64_t count = draw.size() * draw.size(), shift = draw.between(0, 5);
    const auto part = [&](c10::ScalarType of) { return draw.normal({count + shift}, of).narrow(0, shift, count); };
    weights.push_back(part(sums));
    m.push_back(part(sums));
    v.push_back(part(sums).abs());
    if (narrow) values.push_back(part(type));
    grads.push_back(part(type));
  }
  const double t = static_cast<double>(draw.between(1, 9));
  // What a step adds is at most step_size * |m| / root, and root is not below eps: here some ten.
  return {{weights, m, v, values, grads, draw_factor(draw), draw.coin() ? 1.0 : 0.125, 1 - 1e-3, 0.1, 0.999, 1 - 0.999,
           1e-2 / (1 - std::pow(0.9, t)), std::sqrt(1 - std::pow(0.999, t)), 0.05},
          64,
          {}};
}

const RegisterSamples kSamples("concord::adamw_", draw_adamw);

// Three groups of tensors, the second without 16-bit values, which follow one another in flat buffers or not.
Sample draw_groups(Draw& draw, c10::ScalarType type) {
  const auto sums = type == at::kDouble ? type : at::kFloat;
  const bool narrow = type == at::kBFloat16 || type == at::kHalf;
  c10::List<at::Tensor> weights, m, v, values, grads;
  std::vector<int64_t> counts, value_counts;
  std::vector<double> numbers;
  constexpr int64_t kFlat = 4096;
  const at::Tensor flat_weights = draw.normal({kFlat}, sums), flat_m = draw.normal({kFlat}, sums);
  const at::Tensor flat_v = draw.normal({kFlat}, sums).abs(), flat_values = draw.normal({kFlat}, type);
  const at::Tensor flat_grads = draw.normal({kFlat}, type);
  int64_t begin = 0;
  for (int64_t group = 0; group < 3; ++group) {
    counts.push_back(draw.between(0, 3));
    value_counts.push_back(narrow && group != 1 ? counts.back() : 0);
    for (int64_t i = 0; i < counts.back(); ++i) {
      const int64_t count = 5 * draw.size();
      const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, begin, count); };
      weights.push_back(part(flat_weights));
      m.push_back(part(flat_m));
      v.push_back(part(flat_v));
      if (value_counts.back() > 0) values.push_back(part(flat_values));
      grads.push_back(part(flat_grads));
      begin += count + (draw.coin() ? 0 : 3);
    }
    const double t = static_cast<double>(draw.between(1, 9)), decay = draw.coin() ? 1 : 1 - 1e-3;
    numbers.insert(numbers.end(), {0.125, decay, 0.1, 0.999, 1 - 0.999, 1e-2 / (1 - std::pow(0.9, t)),
                                   std::sqrt(1 - std::pow(0.999, t)), 0.05});
  }
  return {{weights, m, v, values, grads, counts, value_counts, draw_factor(draw), numbers}, 64, {}};
}

const RegisterSamples kGroups("concord::adamw_groups_", draw_groups);
const RegisterRealSizes kRealGroups("concord::adamw_groups_", {draw_groups});

TEST(AdamWOperator, DoesWhatTheLoopOfTheHostDoes) {
  Draw draw(7);
  constexpr int64_t kCount = 1000;
  AdamWLists lists;
  lists.weights = {draw.normal({kCount}, at::kFloat)};
  lists.m = {draw.normal({kCount}, at::kFloat)};
  lists.v = {draw.normal({kCount}, at::kFloat).abs()};
  lists.values = {draw.normal({kCount}, at::kBFloat16)};
  lists.grads = {draw.normal({kCount}, at::kBFloat16)};
  const auto copy = [](const std::vector<at::Tensor>& list) { return list[0].clone(); };
  const at::Tensor weights = copy(lists.weights), m = copy(lists.m), v = copy(lists.v), values = copy(lists.values);
  const AdamWStep step = adamw_step({0.9, 0.95, 1e-8}, 1e-3, 0.1, 0.5, 3);
  adamw(step,
        {{lists.grads[0].const_data_ptr(), FlatType::bf16},
         weights.data_ptr<float>(),
         m.data_ptr<float>(),
         v.data_ptr<float>(),
         {values.data_ptr(), FlatType::bf16}},
        0, kCount);
  adamw_(lists, step);
  // A few roundings of numbers around 1, and one of bf16 if a rounded value is on the boundary.
  EXPECT_LE(largest(lists.weights[0] - weights), 1e-6);
  EXPECT_LE(largest(lists.m[0] - m), 1e-6);
  EXPECT_LE(largest(lists.v[0] - v), 1e-6);
  EXPECT_TRUE(at::equal(lists.values[0], lists.weights[0].to(at::kBFloat16)));
  EXPECT_LE(largest(lists.values[0].to(at::kFloat) - values.to(at::kFloat)), 4.0 / 256);
}

// The value of the loss does not matter, only whether it is finite.
const RegisterSamples kFactor("concord::update_factor", [](Draw& draw, c10::ScalarType type) {
  const auto sums = type == at::kDouble ? type : at::kFloat;
  const at::Tensor squares = draw.normal({1}, sums, 3).square();
  const c10::IValue loss = draw.coin() ? c10::IValue(draw.normal({1}, sums)) : c10::IValue();
  return Sample{{squares, loss, draw.coin() ? 0.0 : 1.0, draw.coin() ? 1.0 : 4096.0}, 16};
});
const RegisterRealSizes kRealFactor("concord::update_factor", {[](Draw& draw, c10::ScalarType type) {
                                      const auto sums = type == at::kDouble ? type : at::kFloat;
                                      return Sample{{draw.normal({1}, sums, 30).square(), c10::IValue(), 1.0, 3.0}, 16};
                                    }});

TEST(UpdateFactor, HasTheBitsOfTheHostsClipFactor) {
  Draw draw(3);
  for (const double limit : {0.0, 1.0, 0.3}) {
    for (int i = 0; i < 20; ++i) {
      const at::Tensor squares = draw.normal({1}, at::kDouble, 4).square();
      const double divisor = 1 + 1000 * draw.normal({1}, at::kDouble).abs().item<double>();
      const double right = clip_factor(std::sqrt(squares.item<double>()), limit) / divisor;
      EXPECT_EQ(update_factor(squares, {}, limit, divisor).item<float>(), static_cast<float>(right));
      EXPECT_EQ(update_factor(squares, at::tensor({2.5f}), limit, divisor).item<float>(), static_cast<float>(right));
    }
  }
}

TEST(UpdateFactor, IsNotANumberIfTheNormOrTheLossIsNotFinite) {
  const double infinite = std::numeric_limits<double>::infinity(), none = std::numeric_limits<double>::quiet_NaN();
  const auto of = [](double squares, double loss, double limit) {
    return update_factor(at::tensor({squares}, at::kDouble), at::tensor({loss}, at::kFloat), limit, 2).item<float>();
  };
  for (const double limit : {0.0, 1.0}) {
    EXPECT_EQ(of(0.25, 7, limit), 0.5f);
    for (const double bad : {infinite, -infinite, none}) {
      EXPECT_TRUE(std::isnan(of(0.25, bad, limit))) << bad;
      EXPECT_TRUE(std::isnan(of(std::abs(bad), 7, limit))) << bad;
    }
  }
}

}  // namespace
}  // namespace concord::ops::testing::of_adamw
