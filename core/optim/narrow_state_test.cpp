// Moments in bf16: which types they have, what a step does to them, and how far weights are from those with fp32 state.
#include "core/optim/narrow_state.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <limits>
#include <utility>

#include "core/base/code_map.h"
#include "core/base/config_error.h"
#include "core/optim/main_weights.h"
#include "core/optim/state_precision.h"
#include "tests/processes/parallel_samples.h"

namespace concord::of_narrow_state {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using tests::sample;

constexpr StatePrecision kBothNarrow = {StateType::bf16, StateType::bf16},
                         kFirstNarrow = {.exp_avg_dtype = StateType::bf16},
                         kCodes = {StateType::block8, StateType::block8},
                         kRemainder = {.main_params_dtype = MainParamsType::remainder},
                         kLeast = {StateType::block8, StateType::block8, MainParamsType::remainder},
                         kKahan = {.main_params_dtype = MainParamsType::kahan_sum},
                         kStochastic = {.main_params_dtype = MainParamsType::bf16_stochastic_round},
                         kFp8 = {.exp_avg_dtype = StateType::fp8};
constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kLr = 1e-2, kDecay = 0.1;

OptimizerOptions options_of(OptimizerType optimizer, StatePrecision precision) {
  return {.optimizer = optimizer, .adam_beta1 = kBeta1, .adam_beta2 = kBeta2, .precision = precision};
}

// Codes only for sizes that have whole blocks.
c10::ScalarType type_of(const StatePrecision& precision, const std::string& key, int64_t size) {
  const auto type = scalar_type(state_type(precision, key));
  return has_scales(type) && size % kStateBlock != 0 ? at::kFloat : type;
}

// libtorch does not compare fp8.
at::Tensor bits_of(const at::Tensor& moment) { return moment.element_size() == 1 ? moment.view(at::kByte) : moment; }

Segment segment_of(int64_t size, uint64_t seed, const UpdateRule& rule, const StatePrecision& precision) {
  Segment segment{
      .range = {0, size}, .grads = sample({size}, seed, at::kFloat), .weights = sample({size}, seed + 1, at::kFloat)};
  segment.values = segment.weights.to(at::kBFloat16);
  if (const auto type = main_weights_type(precision, at::kBFloat16); type != at::kFloat) {
    if (type != at::ScalarType::Undefined) segment.remainder = at::empty({size}, type);
    segment.runs = {{.tensor = "w", .count = size, .run_length = size, .run_stride = size}};
    store_weights(segment, std::exchange(segment.weights, {}), 0);
  }
  for (const std::string& key : rule.moments()) {
    const at::Tensor wide = sample({size}, seed + 2, at::kFloat);
    const auto type = type_of(precision, key, size);
    segment.moments.push_back(at::empty({size}, type));
    segment.scales.push_back(has_scales(type) ? at::empty({size / kStateBlock}, at::kFloat) : at::Tensor());
    const size_t i = segment.moments.size() - 1;
    zero_moment(segment.moments[i], segment.scales[i], key);
    EXPECT_EQ(wide_moment(segment, i, key).abs().max().item<float>(), 0);
    if (type == at::kFloat) segment.moments[i].copy_(wide.abs());
    store_moment(segment, i, key, wide.abs());
  }
  return segment;
}

void step(const UpdateRule& rule, std::span<Segment* const> segments, bool on_host, const RuleStep& numbers) {
  on_host ? rule.step_on_host(segments, numbers) : rule.step_on_device(segments, numbers);
}

// Several segments, one of them longer than a piece on the host: the bits of the fp32 rule on widened moments, rounded.
TEST(NarrowState, IsTheRoundedStateOfAnUpdateInFp32) {
  for (const OptimizerType optimizer : {OptimizerType::adam, OptimizerType::lion, OptimizerType::sgd}) {
    const auto wide = make_rule(options_of(optimizer, {}));
    for (const StatePrecision& precision : {kBothNarrow, kFirstNarrow, kRemainder, kLeast, kKahan, kStochastic, kFp8}) {
      const auto rule = make_rule(options_of(optimizer, precision));
      const std::vector<std::string> keys = rule->moments();
      for (const bool on_host : {true, false}) {
        std::vector<Segment> own, expected, kept;
        for (const int64_t size : {int64_t{1003}, (int64_t{1} << 20) + 768, int64_t{64}, int64_t{512}}) {
          own.push_back(segment_of(size, static_cast<uint64_t>(size), *rule, precision));
          expected.push_back(segment_of(size, static_cast<uint64_t>(size), *rule, precision));
          expected.back().weights = wide_weights(own.back()).clone();
          expected.back().remainder = at::Tensor();
          kept.push_back(segment_of(size, static_cast<uint64_t>(size), *rule, precision));
          for (size_t m = 0; m < keys.size(); ++m) {
            expected.back().moments[m] = wide_moment(own.back(), m, keys[m]).clone();
          }
        }
        std::vector<Segment*> own_list, expected_list;
        for (Segment& each : own) own_list.push_back(&each);
        for (Segment& each : expected) expected_list.push_back(&each);
        const RuleStep numbers{.lr = kLr, .weight_decay = kDecay, .grad_scale = 0.5, .t = 3};
        step(*rule, own_list, on_host, numbers);
        step(*wide, expected_list, on_host, numbers);
        for (size_t i = 0; i < own.size(); ++i) {
          const std::string what = fmt::format("{} {} {}", name_of(optimizer), on_host, i);
          if (own[i].has_narrow_main()) store_weights(kept[i], expected[i].weights.clone(), numbers.t);
          const bool is_exact = precision != kKahan && precision != kStochastic;
          EXPECT_TRUE(wide_weights(own[i]).equal(is_exact ? expected[i].weights : wide_weights(kept[i]))) << what;
          // Rounded to nearest even; with a remainder ties may be rounded to the other neighbour.
          const bool splits = own[i].remainder.defined();
          EXPECT_EQ(own[i].weights.defined(), precision.main_params_dtype == MainParamsType::fp32) << what;
          at::Tensor differs = own[i].values.ne(expected[i].values);
          if (splits && is_exact) differs = differs.logical_and(own[i].remainder.ne(-(1 << 15)));
          EXPECT_EQ(differs.any().item<bool>(), precision == kStochastic) << what;
          for (size_t m = 0; m < keys.size(); ++m) {
            Segment rounded = segment_of(own[i].size(), 1, *rule, precision);
            EXPECT_EQ(own[i].moments[m].scalar_type(), type_of(precision, keys[m], own[i].size())) << what;
            if (own[i].moments[m].scalar_type() == at::kFloat) {
              EXPECT_TRUE(own[i].moments[m].equal(expected[i].moments[m])) << what;
              continue;
            }
            store_moment(rounded, m, keys[m], expected[i].moments[m]);
            EXPECT_TRUE(bits_of(own[i].moments[m]).equal(bits_of(rounded.moments[m]))) << what;
            if (rounded.scales[m].defined()) {
              EXPECT_TRUE(own[i].scales[m].equal(rounded.scales[m])) << what;
            }
          }
        }
      }
    }
  }
}

TEST(NarrowState, KeepsItsBitsIfTheDeviceSkipsTheStep) {
  for (const StatePrecision& precision : {kBothNarrow, kRemainder, kKahan, kStochastic}) {
    const auto rule = make_rule(options_of(OptimizerType::adam, precision));
    ASSERT_TRUE(rule->takes_factor(at::kCPU));
    Segment segment = segment_of(1003, 1, *rule, precision);
    Segment* const list[] = {&segment};
    const auto bits = [&] {
      std::vector<at::Tensor> all;
      for (const at::Tensor& each : {segment.weights, segment.has_narrow_main() ? segment.values : at::Tensor(),
                                     segment.remainder, segment.moments[0], segment.moments[1]}) {
        if (each.defined()) all.push_back(each.clone());
      }
      return all;
    };
    const auto before = bits();
    const auto expect_equal = [&](bool is_equal) {
      const auto after = bits();
      for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i].equal(before[i]), is_equal) << i;
    };
    rule->step_on_device(list, {.lr = kLr, .factor = at::full({1}, std::numeric_limits<double>::quiet_NaN())});
    expect_equal(true);
    rule->step_on_device(list, {.lr = kLr, .factor = at::full({1}, 0.5)});
    expect_equal(false);
  }
}

// Compares with libtorch's AdamW in fp64. Rounding to bf16 changes a number by at most u = 2^-9 of it. Errors of m add
// up as e_t = beta1 e + u |m|. v is a sum of positive terms, so that its relative error grows by at most u per step. A
// weight then differs by at most lr (e / (sqrt(v^) (1 - beta1^t)) + |m^| / sqrt(v^) t u / 2) per step, and by terms of
// second order and the roundings of fp32, for which 5 % are added.
TEST(NarrowState, AdamWIsLibtorchsWithinTheRoundingOfItsMoments) {
  constexpr int64_t kSize = 1003;
  constexpr int kSteps = 12;
  constexpr double kUnit = 0x1p-9;
  const auto grad = [](int t) { return sample({kSize}, static_cast<uint64_t>(100 + t), at::kFloat); };
  const auto rule = make_rule(options_of(OptimizerType::adam, kBothNarrow));
  Segment segment{.range = {0, kSize}, .weights = sample({kSize}, 1, at::kFloat)};
  for (int i = 0; i < 2; ++i) segment.moments.push_back(at::zeros({kSize}, at::kBFloat16));
  Segment* const list[] = {&segment};

  const at::Tensor weights = sample({kSize}, 1, at::kFloat).to(at::kDouble).requires_grad_(true);
  torch::optim::AdamW peer({weights},
                           torch::optim::AdamWOptions(kLr).betas({kBeta1, kBeta2}).eps(1e-8).weight_decay(kDecay));
  at::Tensor m = at::zeros({kSize}, at::kDouble), v = m.clone(), error = m.clone(), bound = m.clone();
  for (int t = 1; t <= kSteps; ++t) {
    const at::Tensor g = grad(t).to(at::kDouble);
    segment.grads = grad(t);
    rule->step_on_host(list, {.lr = kLr, .weight_decay = kDecay, .t = t});
    weights.mutable_grad() = g;
    peer.step();
    m = m * kBeta1 + g * (1 - kBeta1);
    v = v * kBeta2 + g * g * (1 - kBeta2);
    const double correction = 1 - std::pow(kBeta1, t);
    const at::Tensor root = (v / (1 - std::pow(kBeta2, t))).sqrt();
    // m is rounded after the update has used it.
    bound += kLr * (error * kBeta1 / correction / root + m.abs() / correction / root * ((t - 1) * kUnit / 2));
    error = error * kBeta1 + m.abs() * kUnit;
  }
  const at::Tensor used = (segment.weights.to(at::kDouble) - weights.detach()).abs() / (bound * 1.05 + 1e-6);
  EXPECT_LE(used.max().item<double>(), 1);
  EXPECT_GE(used.max().item<double>(), 0.05) << "the moments are not narrow";
}

TEST(NarrowState, CodesTakeNoFactorSinceReencodingChangesThem) {
  EXPECT_FALSE(make_rule(options_of(OptimizerType::adam, kCodes))->takes_factor(at::kCPU));
}

// Element by element with the host's conversion: the largest value of a block becomes 448, what is below half of 2^-9
// of a scale becomes 0, and blocks of zeros stay zeros.
TEST(NarrowState, Fp8IsE4m3WithAScalePerBlock) {
  const auto rule = make_rule(options_of(OptimizerType::sgd, kFp8));
  const int64_t size = 4 * kStateBlock;
  Segment segment = segment_of(size, 1, *rule, kFp8);
  const at::Tensor wide = sample({size}, 5, at::kFloat);
  wide.narrow(0, kStateBlock, kStateBlock).zero_();
  wide.narrow(0, 2 * kStateBlock, 1).fill_(-1e6);
  store_moment(segment, 0, "momentum", wide);
  ASSERT_EQ(segment.moments[0].scalar_type(), at::kFloat8_e4m3fn);
  const at::Tensor found = wide_moment(segment, 0, "momentum");
  for (int64_t block = 0; block < 4; ++block) {
    float largest = 1e-12f;
    for (int64_t i = 0; i < kStateBlock; ++i) {
      largest = std::max(largest, std::abs(wide[block * kStateBlock + i].item<float>()));
    }
    const float scale = largest / 448;
    EXPECT_EQ(segment.scales[0][block].item<float>(), scale);
    for (int64_t i = block * kStateBlock; i < (block + 1) * kStateBlock; ++i) {
      const float value = static_cast<float>(c10::Float8_e4m3fn(wide[i].item<float>() / scale));
      ASSERT_EQ(found[i].item<float>(), value * scale) << i;
      // Half a step of 3 bits, or of the smallest numbers.
      ASSERT_LE(std::abs(found[i].item<float>() - wide[i].item<float>()),
                std::max(std::abs(wide[i].item<float>()) * 0x1.01p-4f, scale * 0x1.01p-10f))
          << i;
    }
  }
  EXPECT_FALSE(rule->takes_factor(at::kCPU));
}

// Half a step of 10 bits, or of numbers below 2^-14 of a scale.
TEST(NarrowState, Fp16HasAScalePerBlock) {
  const StatePrecision precision = {StateType::fp16, StateType::fp16};
  const auto rule = make_rule(options_of(OptimizerType::adam, precision));
  const int64_t size = 3 * kStateBlock;
  Segment segment = segment_of(size, 1, *rule, precision);
  const at::Tensor wide = sample({size}, 5, at::kFloat).square().mul(1e-9);
  wide.narrow(0, kStateBlock, kStateBlock).zero_();
  wide.narrow(0, 2 * kStateBlock, 1).fill_(1e6);
  store_moment(segment, 1, "exp_avg_sq", wide);
  ASSERT_EQ(segment.moments[1].scalar_type(), at::kHalf);
  const at::Tensor blocks = wide.view({-1, kStateBlock}), found = wide_moment(segment, 1, "exp_avg_sq");
  const at::Tensor scales = blocks.amax(1).clamp_min(1e-12).div(65504).unsqueeze(1);
  EXPECT_TRUE(segment.scales[1].equal(scales.view({-1})));
  EXPECT_TRUE(found.equal(blocks.div(scales).to(at::kHalf).to(at::kFloat).mul(scales).view({-1})));
  const at::Tensor bound = at::maximum(blocks.mul(0x1.01p-11), scales.mul(0x1.01p-25)).view({-1});
  EXPECT_TRUE(found.sub(wide).abs().le(bound).all().item<bool>());
}

TEST(NarrowState, CodesAreForTensorsOfWholeBlocks) {
  const auto takes = [](std::vector<int64_t> elements) { return takes_blocks(elements); };
  EXPECT_TRUE(takes({4096, 8192}));
  EXPECT_FALSE(takes({4096, 3840})) << "below 4,096";
  EXPECT_FALSE(takes({4096 + 128})) << "half a block";
}

TEST(NarrowState, ThePlanNamesTheTypeOfEveryTensor) {
  OptimizerOptions options = options_of(OptimizerType::adam, kFirstNarrow);
  EXPECT_EQ(to_text(plan_state(options, true)), "exp_avg bf16 2 + exp_avg_sq fp32 4 + main fp32 4");
  options.precision = kBothNarrow;
  EXPECT_EQ(plan_state(options, false).bytes(), 4);
  options.precision = kCodes;
  EXPECT_EQ(plan_state(options, true).bytes(), 2 * (1 + 4.0 / 256) + 4);
  options.precision = kLeast;
  EXPECT_EQ(to_text(plan_state(options, true)), "exp_avg 8bit 1.01562 + exp_avg_sq 8bit 1.01562 + main remainder 2");
  EXPECT_EQ(plan_state(options, false).bytes(), 2 * (1 + 4.0 / 256)) << "fp32 parameters have no main weights";
  options.precision = kFp8;
  EXPECT_EQ(to_text(plan_state(options, false)), "exp_avg fp8 1.01562 + exp_avg_sq fp32 4");
  options.precision = {StateType::fp16};
  EXPECT_EQ(to_text(plan_state(options, false)), "exp_avg fp16 2.01562 + exp_avg_sq fp32 4");
  options.precision = kStochastic;
  EXPECT_EQ(to_text(plan_state(options, true)), "exp_avg fp32 4 + exp_avg_sq fp32 4 + main bf16_stochastic_round 0");
  options.precision = kKahan;
  EXPECT_EQ(plan_state(options, true).bytes(), 4 + 4 + 2);
  options.precision = kBothNarrow;
  options.ema_decay = 0.5;
  EXPECT_EQ(plan_state(options, true).bytes(), 2 + 2 + 4 + 4);
  EXPECT_EQ(to_text(plan_state(options_of(OptimizerType::sgd, kBothNarrow), false)), "momentum bf16 2");
  EXPECT_EQ(plan_state(options_of(OptimizerType::lion, {}), false).bytes(), 4);
}

// v shrinks only if its change is not rounded away, for every value of v: just below and at the bound.
TEST(NarrowState, RefusesAMomentThatWouldNotDecay) {
  OptimizerOptions options = options_of(OptimizerType::adam, kBothNarrow);
  options.adam_beta2 = 0.999;
  EXPECT_THAT([&] { make_rule(options); },
              ThrowsMessage<ConfigError>(HasSubstr("exp_avg_sq_dtype is bf16 and adam_beta2 is 0.999")));
  options.precision = kFirstNarrow;
  EXPECT_NO_THROW(make_rule(options));
  options.precision = {.exp_avg_sq_dtype = StateType::fp8};
  EXPECT_THAT([&] { make_rule(options); }, ThrowsMessage<ConfigError>(HasSubstr("exp_avg_sq_dtype is fp8, which")));
  options.precision = kFirstNarrow;
  options.optimizer = OptimizerType::lion;  // its momentum decays by adam_beta2
  EXPECT_THAT([&] { make_rule(options); }, ThrowsMessage<ConfigError>(HasSubstr("exp_avg_dtype is bf16")));
  const auto shrinks = [](double decay) {
    const at::Tensor values = (at::arange(128, at::kDouble) / 128 + 1).to(at::kBFloat16);  // all of [1, 2)
    return values.to(at::kFloat).mul(decay).to(at::kBFloat16).lt(values).all().item<bool>();
  };
  options = options_of(OptimizerType::adam, {StateType::fp16, StateType::fp16});
  options.adam_beta2 = 0.999;
  EXPECT_NO_THROW(make_rule(options));
  options.adam_beta2 = 0.9999;
  EXPECT_THAT([&] { make_rule(options); }, ThrowsMessage<ConfigError>(HasSubstr("decays if adam_beta2 is <= 0.99951")));
  EXPECT_TRUE(shrinks(1 - 0x1p-8));
  EXPECT_FALSE(shrinks(1 - 0.99 * 0x1p-8));
}

}  // namespace
}  // namespace concord::of_narrow_state
