// AdamW and SGD on the host and with libtorch's operators, compared with libtorch's own optimizers.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <limits>

#include "core/base/config_error.h"
#include "core/optim/rules/update_rule.h"
#include "tests/processes/parallel_samples.h"

namespace concord {
namespace {

using tests::sample;

constexpr int64_t kSize = 1003;  // no multiple of a vector
constexpr int kSteps = 12;
constexpr double kLr = 1e-2, kDecay = 0.1;

enum class Where { host, device };

at::Tensor grad_of_step(int step) { return sample({kSize}, static_cast<uint64_t>(100 + step), at::kFloat); }

Segment segment_of(const at::Tensor& weights, size_t moments) {
  Segment segment{.range = {0, weights.numel()}, .weights = weights};
  for (size_t i = 0; i < moments; ++i) segment.moments.push_back(at::zeros({weights.numel()}, at::kFloat));
  return segment;
}

void step(const UpdateRule& rule, Segment& segment, Where where, const RuleStep& numbers) {
  Segment* const list[] = {&segment};
  where == Where::host ? rule.step_on_host(list, numbers) : rule.step_on_device(list, numbers);
}

// |grads_scaled| by 4 and back, as clipping and loss scales do.
at::Tensor ours(const OptimizerOptions& options, Where where) {
  const auto rule = make_rule(options);
  Segment segment = segment_of(sample({kSize}, 1, at::kFloat), rule->moments().size());
  for (int i = 1; i <= kSteps; ++i) {
    segment.grads = grad_of_step(i).mul(4);
    step(*rule, segment, where, {.lr = kLr, .weight_decay = kDecay, .grad_scale = 0.25, .t = i});
  }
  return segment.weights;
}

// In fp64.
template <class Peer, class Options>
at::Tensor theirs(Options options) {
  const at::Tensor weights = sample({kSize}, 1, at::kFloat).to(at::kDouble).requires_grad_(true);
  Peer peer({weights}, options);
  for (int i = 1; i <= kSteps; ++i) {
    weights.mutable_grad() = grad_of_step(i).to(at::kDouble);
    peer.step();
  }
  return weights.detach();
}

// A step adds at most lr to a weight below 2, in about ten roundings of numbers that size.
void expect_close(const at::Tensor& got, const at::Tensor& wanted) {
  EXPECT_LE(got.to(at::kDouble).sub(wanted).abs().max().item<double>(), kSteps * 10 * 0x1p-24 * 2);
}

TEST(Rules, AdamWIsLibtorchs) {
  const auto wanted =
      theirs<torch::optim::AdamW>(torch::optim::AdamWOptions(kLr).betas({0.9, 0.95}).eps(1e-8).weight_decay(kDecay));
  const OptimizerOptions options{.optimizer = OptimizerType::adam, .adam_beta1 = 0.9, .adam_beta2 = 0.95};
  expect_close(ours(options, Where::host), wanted);
  expect_close(ours(options, Where::device), wanted);
}

TEST(Rules, SgdIsLibtorchs) {
  const auto wanted = theirs<torch::optim::SGD>(torch::optim::SGDOptions(kLr).momentum(0.9).weight_decay(kDecay));
  const OptimizerOptions options{.optimizer = OptimizerType::sgd, .sgd_momentum = 0.9};
  expect_close(ours(options, Where::host), wanted);
  expect_close(ours(options, Where::device), wanted);
}

// The paper's formula, in fp64. A direction is 0 within rounding for none of these samples.
TEST(Rules, LionIsThePapers) {
  constexpr double kBeta1 = 0.9, kBeta2 = 0.99;
  at::Tensor weights = sample({kSize}, 1, at::kFloat).to(at::kDouble), m = at::zeros({kSize}, at::kDouble);
  for (int i = 1; i <= kSteps; ++i) {
    const at::Tensor g = grad_of_step(i).to(at::kDouble), c = m * kBeta1 + g * (1 - kBeta1);
    ASSERT_GT(c.abs().min().item<double>(), 1e-6);
    weights = weights - kLr * (c.sign() + kDecay * weights);
    m = m * kBeta2 + g * (1 - kBeta2);
  }
  const OptimizerOptions options{.optimizer = OptimizerType::lion, .adam_beta1 = kBeta1, .adam_beta2 = kBeta2};
  expect_close(ours(options, Where::host), weights);
  expect_close(ours(options, Where::device), weights);
}

// Each type of gradients and parameters: fp32 weights move as before, the parameter is their rounding.
TEST(Rules, SixteenBitParametersAreTheRoundedMainWeights) {
  for (const OptimizerType optimizer : {OptimizerType::adam, OptimizerType::lion, OptimizerType::sgd}) {
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      for (const auto grad_type : {at::kFloat, type}) {
        for (const Where where : {Where::host, Where::device}) {
          const auto rule = make_rule({.optimizer = optimizer});
          Segment segment = segment_of(sample({kSize}, 1, at::kFloat), rule->moments().size());
          Segment plain = segment_of(sample({kSize}, 1, at::kFloat), rule->moments().size());
          segment.values = at::zeros({kSize}, type);
          segment.grads = grad_of_step(1).to(grad_type);
          plain.grads = segment.grads.to(at::kFloat);
          step(*rule, segment, where, {.lr = kLr, .t = 1});
          step(*rule, plain, where, {.lr = kLr, .t = 1});
          EXPECT_TRUE(segment.weights.equal(plain.weights)) << name_of(optimizer) << type << grad_type;
          EXPECT_TRUE(segment.values.equal(segment.weights.to(type))) << name_of(optimizer) << type << grad_type;
        }
      }
    }
  }
}

TEST(Rules, AFactorOnTheDeviceIsTheScaleAndWithOneThatIsNotFiniteNothingChanges) {
  const auto rule = make_rule({.optimizer = OptimizerType::adam});
  ASSERT_TRUE(rule->takes_factor(at::kCPU));
  const auto after = [&](const RuleStep& numbers) {
    Segment segment = segment_of(sample({kSize}, 1, at::kFloat), 2);
    segment.values = sample({kSize}, 2, at::kFloat).to(at::kBFloat16);
    segment.grads = grad_of_step(1);
    step(*rule, segment, Where::device, numbers);
    return std::vector{segment.weights, segment.values, segment.moments[0], segment.moments[1]};
  };
  const std::vector<at::Tensor> before = {sample({kSize}, 1, at::kFloat),
                                          sample({kSize}, 2, at::kFloat).to(at::kBFloat16),
                                          at::zeros({kSize}, at::kFloat), at::zeros({kSize}, at::kFloat)};
  const auto scaled = after({.lr = kLr, .grad_scale = 0.125});
  const auto with_factor = [&](double factor) { return after({.lr = kLr, .factor = at::full({1}, factor)}); };
  const auto same = with_factor(0.125), none = with_factor(std::numeric_limits<double>::quiet_NaN()),
             infinite = with_factor(std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(same[i].equal(scaled[i])) << i;
    EXPECT_FALSE(same[i].equal(before[i])) << i;
    EXPECT_TRUE(none[i].equal(before[i])) << i;
    EXPECT_TRUE(infinite[i].equal(before[i])) << i;
  }
}

TEST(Rules, GroupsMultiplyLearningRateAndDecay) {
  const auto rule = make_rule({.optimizer = OptimizerType::adam});
  for (const Where where : {Where::host, Where::device}) {
    Segment twice = segment_of(sample({kSize}, 1, at::kFloat), 2),
            plain = segment_of(sample({kSize}, 1, at::kFloat), 2);
    twice.multipliers = {.lr = 2, .weight_decay = 0};
    twice.grads = plain.grads = grad_of_step(1);
    Segment* const both[] = {&twice};
    where == Where::host ? rule->step_on_host(both, {.lr = kLr, .weight_decay = kDecay})
                         : rule->step_on_device(both, {.lr = kLr, .weight_decay = kDecay});
    step(*rule, plain, where, {.lr = 2 * kLr, .weight_decay = 0});
    EXPECT_TRUE(twice.weights.equal(plain.weights));
  }
}

// The host's threads take blocks of 32,768 elements: two of them and a part are updated as segments of 9,999 are.
TEST(Rules, EveryBlockOfALongSegmentIsUpdated) {
  constexpr int64_t kLong = 70'001, kShort = 9'999;
  for (const OptimizerType optimizer : {OptimizerType::adam, OptimizerType::lion, OptimizerType::sgd}) {
    const auto rule = make_rule({.optimizer = optimizer});
    Segment whole = segment_of(sample({kLong}, 1, at::kFloat), rule->moments().size());
    whole.values = at::zeros({kLong}, at::kBFloat16);
    whole.grads = sample({kLong}, 2, at::kFloat);
    const at::Tensor weights = whole.weights.clone();
    step(*rule, whole, Where::host, {.lr = kLr, .weight_decay = kDecay, .t = 1});
    for (int64_t begin = 0; begin < kLong; begin += kShort) {
      const int64_t count = std::min(kShort, kLong - begin);
      Segment part = segment_of(weights.narrow(0, begin, count), rule->moments().size());
      part.grads = whole.grads.narrow(0, begin, count);
      part.values = at::zeros({count}, at::kBFloat16);
      step(*rule, part, Where::host, {.lr = kLr, .weight_decay = kDecay, .t = 1});
      EXPECT_TRUE(whole.weights.narrow(0, begin, count).equal(part.weights)) << name_of(optimizer) << " from " << begin;
      EXPECT_TRUE(whole.values.narrow(0, begin, count).equal(part.values)) << name_of(optimizer) << " from " << begin;
      for (size_t i = 0; i < part.moments.size(); ++i) {
        EXPECT_TRUE(whole.moments[i].narrow(0, begin, count).equal(part.moments[i]))
            << name_of(optimizer) << " from " << begin;
      }
    }
  }
}

TEST(Rules, RefusesWhatCannotBeMeant) {
  EXPECT_THROW(make_rule({.adam_beta1 = 1}), ConfigError);
  EXPECT_THROW(make_rule({.adam_epsilon = -1}), ConfigError);
  EXPECT_THROW(make_rule({.optimizer = OptimizerType::sgd, .sgd_momentum = -0.1}), ConfigError);
}

}  // namespace
}  // namespace concord
