#include "core/parallel/recompute.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>

#include "core/base/config_error.h"
#include "core/parallel/testing/memory_meter.h"
#include "core/torch/device.h"
#include "platform/cpp/concord.hpp"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 32;
constexpr int64_t kRows = 64;
constexpr int kStackLayers = 6;
constexpr RngSeeds kSeeds{11, 12, 13};

at::Tensor numbers(std::vector<int64_t> shape, int64_t seed) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return at::arange(count, at::kFloat)
      .mul_(static_cast<double>(seed * 37 + 11))
      .remainder_(101)
      .sub_(50)
      .div_(300)
      .view(shape);
}

// Layers with dropout on the tracker's streams: even ones draw from "default", odd ones from a fork.
class Network {
 public:
  Network() {
    for (int i = 0; i < kStackLayers; ++i) weights_.push_back(numbers({kWidth, kWidth}, i + 1).requires_grad_(true));
  }

  at::Tensor layer(int i, const at::Tensor& x) {
    const at::Tensor hidden = at::matmul(x, weights_[static_cast<size_t>(i)]).tanh();
    if (i % 2 == 0) return hidden.mul(mask_of(hidden));
    const auto fork = rng.fork(kModelParallelRng);
    return hidden.mul(mask_of(hidden));
  }

  at::Tensor run(const at::Tensor& x, const std::vector<LayerRun>& plan) {
    at::Tensor y = x;
    for (const LayerRun& unit : plan) {
      const auto layers = [this, unit](const std::vector<at::Tensor>& in) {
        at::Tensor out = in[0];
        for (int64_t i = unit.begin; i < unit.end; ++i) out = layer(static_cast<int>(i), out);
        return std::vector<at::Tensor>{out};
      };
      y = unit.recomputed ? recompute(layers, {y}, rng)[0] : layers({y})[0];
    }
    return y;
  }

  std::vector<at::Tensor>& weights() { return weights_; }
  RngTracker rng{kSeeds};

 private:
  at::Tensor mask_of(const at::Tensor& hidden) {
    const at::Tensor mask = at::empty_like(hidden);
    const Device device(current_platform(), 0);
    rng.current().uniform(torch_stream(device), mask.data_ptr(), mask.numel(), DType::kF32);
    return mask.gt_(0.25);
  }
  std::vector<at::Tensor> weights_;
};

// Code that behaves differently in training and in evaluation does the same in both runs.
TEST(Recompute, BothRunsAreDifferentiated) {
  RngTracker rng{kSeeds};
  std::vector<std::pair<bool, bool>> runs;  // gradient mode, and is_differentiating()
  const auto note = [&](const std::vector<at::Tensor>& in) {
    runs.emplace_back(at::GradMode::is_enabled(), is_differentiating());
    return std::vector<at::Tensor>{in[0].mul(2)};
  };
  const at::Tensor x = numbers({2, 2}, 1).requires_grad_(true);
  recompute(note, {x}, rng)[0].sum().backward();
  {
    const at::NoGradGuard no_grad;
    recompute(note, {x}, rng);
  }
  note({x});
  EXPECT_THAT(
      runs, ElementsAre(std::pair(false, true), std::pair(true, true), std::pair(false, false), std::pair(true, true)));
}

struct Gradients {
  at::Tensor output;
  at::Tensor input;
  std::vector<at::Tensor> weights;
  std::vector<RngState> after;
};

Gradients gradients_with(const std::vector<LayerRun>& plan) {
  Network network;
  const at::Tensor x = numbers({kRows, kWidth}, 99).requires_grad_(true);
  const at::Tensor y = network.run(x, plan);
  y.square().sum().backward();
  Gradients result{y.detach(), x.grad(), {}, network.rng.save()};
  for (const at::Tensor& weight : network.weights()) result.weights.push_back(weight.grad());
  return result;
}

void expect_same_bits(const Gradients& a, const Gradients& b) {
  EXPECT_TRUE(a.output.equal(b.output));
  EXPECT_TRUE(a.input.equal(b.input));
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_TRUE(a.weights[i].equal(b.weights[i])) << "of layer " << i;
  EXPECT_EQ(a.after, b.after);
}

TEST(Recompute, GradientsAndRandomStatesAreBitForBitThoseWithoutIt) {
  const Gradients plain = gradients_with(recompute_plan({}, kStackLayers));
  EXPECT_GT(plain.input.abs().max().item<float>(), 0.0F);
  for (const int64_t unit : {1, 2, 4, 6}) {
    SCOPED_TRACE(unit);
    expect_same_bits(
        gradients_with(recompute_plan({.granularity = RecomputeGranularity::full, .num_layers = unit}, kStackLayers)),
        plain);
  }
  const RecomputeArgs block{
      .granularity = RecomputeGranularity::full, .method = RecomputeMethod::block, .num_layers = 3};
  expect_same_bits(gradients_with(recompute_plan(block, kStackLayers)), plain);
}

// A norm before two GEMMs, which save their input; |again| counts the recomputations.
struct NormedProduct {
  at::Tensor x = numbers({kRows, kWidth}, 99).requires_grad_(true);
  at::Tensor weight = numbers({kWidth, kWidth}, 1).requires_grad_(true);
  int again = 0;

  at::Tensor norm() const { return x.div(x.norm()); }
  at::Tensor run(bool keeps) {
    const at::Tensor normed = norm();
    const at::Tensor y = at::matmul(normed, weight), turned = at::matmul(normed, weight.t());
    const auto count = [this] {
      ++again;
      return norm();
    };
    if (!keeps) recompute_values(normed, {y, turned}, count);
    return y.add(turned);
  }
};

TEST(RecomputeValues, GradientsAreBitForBitThoseOfValuesThatWereKept) {
  NormedProduct kept, again;
  kept.run(true).square().sum().backward();
  again.run(false).square().sum().backward();
  EXPECT_EQ(again.again, 1);
  EXPECT_GT(kept.weight.grad().abs().max().item<float>(), 0.0F);
  EXPECT_TRUE(again.weight.grad().equal(kept.weight.grad()));
  EXPECT_TRUE(again.x.grad().equal(kept.x.grad()));
}

TEST(RecomputeValues, TakeNoMemoryUntilTheyAreNeededAndNoneAfterwards) {
  constexpr int64_t kBytes = kRows * kWidth * 4;
  const auto held_by = [](bool keeps) {
    NormedProduct product;
    const auto meter = std::make_shared<MemoryMeter>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
    const at::Tensor y = product.run(keeps);
    const int64_t before = meter->held;
    y.sum().backward();
    return std::pair(before, meter->held);
  };
  const auto [kept, kept_after] = held_by(true);
  const auto [released, released_after] = held_by(false);
  EXPECT_EQ(kept - released, kBytes);
  EXPECT_EQ(released_after, kept_after);
}

TEST(RecomputeValues, AreNotComputedAgainIfNobodyKeptThem) {
  NormedProduct product;
  product.weight = product.weight.detach();  // so that the GEMMs need no input for their gradients
  product.run(false).sum().backward();
  EXPECT_EQ(product.again, 0);
  EXPECT_TRUE(product.x.grad().defined());
}

TEST(RecomputeValues, AreLeftAloneWithoutGradients) {
  NormedProduct product;
  const at::NoGradGuard without_gradients;
  const at::Tensor normed = product.norm();
  recompute_values(normed, {at::matmul(normed, product.weight)}, [] { return at::Tensor(); });
  EXPECT_TRUE(normed.equal(product.norm()));
}

TEST(Recompute, ReachesParametersAlsoWhereTheInputNeedsNoGradient) {
  Network network;
  const at::Tensor y = network.run(numbers({kRows, kWidth}, 99), {{0, kStackLayers, true}});
  y.sum().backward();
  for (const at::Tensor& weight : network.weights()) EXPECT_TRUE(weight.grad().defined());
}

TEST(Recompute, NestsWithTheSameBits) {
  const Gradients plain = gradients_with({{0, kStackLayers, false}});
  Network network;
  const at::Tensor x = numbers({kRows, kWidth}, 99).requires_grad_(true);
  const auto outer = [&](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{
        network.run(in[0], recompute_plan({.granularity = RecomputeGranularity::full}, kStackLayers))};
  };
  recompute(outer, {x}, network.rng)[0].square().sum().backward();
  EXPECT_TRUE(x.grad().equal(plain.input));
}

TEST(Recompute, OutputsThatNobodyUsesAndInputsWithoutGradientsAreFine) {
  RngTracker rng(kSeeds);
  const at::Tensor x = numbers({4}, 1).requires_grad_(true);
  const at::Tensor constant = numbers({4}, 2);
  const auto two = [](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{in[0].mul(in[1]), in[0].exp()};
  };
  recompute(two, {x, constant}, rng)[0].sum().backward();
  EXPECT_TRUE(x.grad().equal(constant));
}

TEST(Recompute, WithoutGradientsTheFunctionRunsOnceAndNothingIsKept) {
  RngTracker rng(kSeeds);
  int runs = 0;
  const at::NoGradGuard no_grad;
  const auto counted = [&](const std::vector<at::Tensor>& in) {
    ++runs;
    return in;
  };
  EXPECT_FALSE(recompute(counted, {numbers({4}, 1)}, rng)[0].requires_grad());
  EXPECT_EQ(runs, 1);
}

int64_t kept_for_backward(const std::vector<LayerRun>& plan) {
  Network network;
  const at::Tensor x = numbers({kRows, kWidth}, 99);
  auto meter = std::make_shared<MemoryMeter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  const at::Tensor y = network.run(x, plan);
  return meter->held;
}

// One activation is kRows * kWidth floats. A plain layer saves three of them (output of tanh, mask, product); a
// recomputed unit saves only its output.
TEST(Recompute, MemoryBetweenForwardAndBackwardFollowsTheFormula) {
  constexpr int64_t kActivation = kRows * kWidth * 4;
  EXPECT_EQ(kept_for_backward({{0, kStackLayers, false}}), 3 * kStackLayers * kActivation);
  EXPECT_EQ(
      kept_for_backward(recompute_plan({.granularity = RecomputeGranularity::full, .num_layers = 1}, kStackLayers)),
      kStackLayers * kActivation);
  EXPECT_EQ(
      kept_for_backward(recompute_plan({.granularity = RecomputeGranularity::full, .num_layers = 2}, kStackLayers)),
      kStackLayers / 2 * kActivation);
  EXPECT_EQ(kept_for_backward(recompute_plan(
                {.granularity = RecomputeGranularity::full, .method = RecomputeMethod::block, .num_layers = 2},
                kStackLayers)),
            (2 + 3 * (kStackLayers - 2)) * kActivation);
}

TEST(RecomputePlan, SelectiveWithoutModulesRecomputesTheAttentionAsInMegatron) {
  const RecomputeArgs nothing_named{.granularity = RecomputeGranularity::selective};
  EXPECT_TRUE(recomputes_module(nothing_named, RecomputeModule::core_attn));
  EXPECT_FALSE(recomputes_module(nothing_named, RecomputeModule::mlp));
  EXPECT_FALSE(recomputes_module({.granularity = RecomputeGranularity::selective, .modules = {RecomputeModule::mlp}},
                                 RecomputeModule::core_attn));
  EXPECT_FALSE(recomputes_module({}, RecomputeModule::core_attn));
}

TEST(RecomputePlan, IsMegatrons) {
  EXPECT_THAT(recompute_plan({}, 5), ElementsAre(LayerRun{0, 5, false}));
  EXPECT_THAT(
      recompute_plan({.granularity = RecomputeGranularity::selective, .modules = {RecomputeModule::core_attn}}, 5),
      ElementsAre(LayerRun{0, 5, false}));
  EXPECT_THAT(recompute_plan({.granularity = RecomputeGranularity::full, .num_layers = 2}, 5),
              ElementsAre(LayerRun{0, 2, true}, LayerRun{2, 4, true}, LayerRun{4, 5, true}));
  EXPECT_THAT(
      recompute_plan({.granularity = RecomputeGranularity::full, .method = RecomputeMethod::block, .num_layers = 2}, 5),
      ElementsAre(LayerRun{0, 1, true}, LayerRun{1, 2, true}, LayerRun{2, 5, false}));
  EXPECT_THAT(
      recompute_plan({.granularity = RecomputeGranularity::full, .method = RecomputeMethod::block, .num_layers = 9}, 1),
      ElementsAre(LayerRun{0, 1, true}));
  EXPECT_TRUE(recompute_plan({.granularity = RecomputeGranularity::full}, 0).empty());
}

std::string refusal(const RecomputeArgs& args) {
  try {
    recompute_plan(args, 4);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RecomputePlan, ANumberOfLayersBelowOneIsRefused) {
  EXPECT_THAT(refusal({.granularity = RecomputeGranularity::full, .num_layers = 0}),
              HasSubstr("recompute_num_layers is 0"));
}

}  // namespace
}  // namespace concord
