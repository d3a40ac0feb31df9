#include "core/parallel/offload/activation_offload.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
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
using ::testing::IsEmpty;

constexpr RngSeeds kOffloadSeeds{21, 22, 23};
constexpr int64_t kUnits = 6, kColumns = 64, kTokens = 256;

std::vector<LayerRun> runs_of(int64_t layers, int64_t unit = 1) {
  return recompute_plan({.granularity = RecomputeGranularity::full, .num_layers = unit}, layers);
}

std::vector<std::string> texts(const std::vector<LayerRun>& runs, const ActivationOffloadArgs& args,
                               bool input_stays = false) {
  std::vector<std::string> all;
  for (const ActivationMove& move : activation_moves(runs, args, input_stays)) all.push_back(text_of(move));
  return all;
}

TEST(ActivationMoves, AllInputsButTheLastLeaveInForwardAndReturnOneUnitEarly) {
  EXPECT_THAT(texts(runs_of(4), {.cpu_offloading = true}),
              ElementsAre("F0: 0 out", "F1: 1 out", "F2: 2 out", "B3: 2 in", "B2: 1 in", "B1: 0 in"));
  EXPECT_THAT(texts(runs_of(4), {.cpu_offloading = true}, /*input_stays=*/true),
              ElementsAre("F1: 1 out", "F2: 2 out", "B3: 2 in", "B2: 1 in"));
  EXPECT_THAT(texts(runs_of(4), {}), IsEmpty());
  EXPECT_THAT(texts(runs_of(1), {.cpu_offloading = true}), IsEmpty());
}

TEST(ActivationMoves, TheFirstLayersMayBeChosenByNumber) {
  EXPECT_THAT(texts(runs_of(4), {.cpu_offloading_num_layers = 1}), ElementsAre("F0: 0 out", "B1: 0 in"));
  EXPECT_EQ(texts(runs_of(4), {.cpu_offloading_num_layers = 9}), texts(runs_of(4), {.cpu_offloading = true}));
  // Units of two layers: the second one begins with layer 2.
  EXPECT_THAT(texts(runs_of(6, 2), {.cpu_offloading_num_layers = 2}), ElementsAre("F0: 0 out", "B1: 0 in"));
  EXPECT_EQ(texts(runs_of(6, 2), {.cpu_offloading_num_layers = 3}).size(), 4u);
}

TEST(ActivationMoves, OnlyInputsOfRecomputedLayersMove) {
  const auto some =
      recompute_plan({.granularity = RecomputeGranularity::full, .method = RecomputeMethod::block, .num_layers = 2}, 4);
  EXPECT_THAT(texts(some, {.cpu_offloading = true}), ElementsAre("F0: 0 out", "B1: 0 in"));
  try {
    texts(recompute_plan({}, 4), {.cpu_offloading = true});
    FAIL() << "nothing is recomputed";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("recompute_granularity: full"));
  }
}

at::Tensor layer_input(std::vector<int64_t> shape, int64_t seed) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const auto wide = at::arange(count, at::kFloat).mul_(static_cast<double>(seed * 37 + 11)).remainder_(101).sub_(50);
  return wide.div_(300).view(shape).to(torch_device(current_platform(), 0));
}

class ActivationOffloading : public ::testing::Test {
 protected:
  ActivationOffloading() {
    for (int64_t i = 0; i < kUnits; ++i)
      weights.push_back(layer_input({kColumns, kColumns}, i + 1).requires_grad_(true));
  }

  std::vector<ActivationMove> moves(const ActivationOffloadArgs& args) const {
    return activation_moves(runs, args, /*input_stays=*/false);
  }

  // All layers, each one recomputed; |offload| null: autograd keeps their inputs.
  at::Tensor forward(at::Tensor x, const ActivationOffload* offload) {
    const auto pass = offload == nullptr ? nullptr : offload->begin_pass();
    for (int64_t i = 0; i < kUnits; ++i) {
      const at::Tensor weight = weights[static_cast<size_t>(i)];
      const auto layer = [weight](const std::vector<at::Tensor>& in) {
        return std::vector<at::Tensor>{at::matmul(at::matmul(in[0], weight).tanh(), weight).add(in[0])};
      };
      x = recompute(layer, {x}, rng, pass ? pass->input_of(i) : nullptr)[0];
    }
    return x;
  }

  std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& inputs, const ActivationOffload* offload) {
    for (at::Tensor& weight : weights) weight.mutable_grad().reset();
    std::vector<at::Tensor> leaves, outputs, all;
    for (const at::Tensor& input : inputs) {
      leaves.push_back(input.clone().requires_grad_(true));
      outputs.push_back(forward(leaves.back(), offload));  // the graphs of all passes exist at a time
    }
    for (const at::Tensor& output : outputs) output.square().sum().backward();
    for (const at::Tensor& leaf : leaves) all.push_back(leaf.grad());
    for (const at::Tensor& weight : weights) all.push_back(weight.grad());
    return all;
  }

  static void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(wanted[i])) << i;
  }

  std::vector<LayerRun> runs = runs_of(kUnits);
  std::vector<at::Tensor> weights;
  RngTracker rng{kOffloadSeeds};
  Device device{current_platform(), 0};
};

TEST_F(ActivationOffloading, GivesTheSameBitsAndMovesWhatThePlanSays) {
  const at::Tensor x = layer_input({kTokens, kColumns}, 99);
  const auto bytes = static_cast<int64_t>(x.nbytes());
  const std::vector<at::Tensor> wanted = gradients({x}, nullptr);
  for (const ActivationOffloadArgs& args :
       {ActivationOffloadArgs{.cpu_offloading = true}, ActivationOffloadArgs{.cpu_offloading_num_layers = 2}}) {
    const ActivationOffload offload(device, moves(args), kUnits);
    for (int64_t step = 1; step <= 3; ++step) {
      expect_equal(gradients({x}, &offload), wanted);
      const auto traffic = offload.traffic();
      const int64_t planned = offloaded_units(moves(args)) * bytes;
      EXPECT_EQ(traffic.to_host, step * planned);
      EXPECT_EQ(traffic.to_device, step * planned);
      EXPECT_EQ(traffic.pinned, planned) << "later steps reuse the buffers of the first";
    }
  }
}

TEST_F(ActivationOffloading, PassesThatOverlapHaveTheirOwnInputs) {
  const std::vector<at::Tensor> inputs{layer_input({kTokens, kColumns}, 5), layer_input({kTokens / 2, kColumns}, 6)};
  const ActivationOffload offload(device, moves({.cpu_offloading = true}), kUnits);
  expect_equal(gradients(inputs, &offload), gradients(inputs, nullptr));
  const auto bytes = static_cast<int64_t>(inputs[0].nbytes() + inputs[1].nbytes());
  EXPECT_EQ(offload.traffic().pinned, (kUnits - 1) * bytes);
}

TEST_F(ActivationOffloading, LongerInputsReplaceTheHostBuffersOfShorterOnes) {
  const ActivationOffload offload(device, moves({.cpu_offloading = true}), kUnits);
  for (const int64_t rows : {kTokens / 4, kTokens, kTokens / 2, kTokens}) {
    const at::Tensor x = layer_input({rows, kColumns}, rows);
    expect_equal(gradients({x}, &offload), gradients({x}, nullptr));
  }
  EXPECT_EQ(offload.traffic().pinned, (kUnits - 1) * kTokens * kColumns * 4);
}

TEST_F(ActivationOffloading, APassWithoutBackwardReturnsItsHostMemory) {
  const ActivationOffload offload(device, moves({.cpu_offloading = true}), kUnits);
  const at::Tensor x = layer_input({kTokens, kColumns}, 7).requires_grad_(true);
  for (int i = 0; i < 4; ++i) forward(x, &offload);
  EXPECT_EQ(offload.traffic().pinned, (kUnits - 1) * static_cast<int64_t>(x.nbytes()));
  EXPECT_EQ(offload.traffic().to_device, 0);
}

TEST_F(ActivationOffloading, NothingMovesWithoutGradients) {
  const ActivationOffload offload(device, moves({.cpu_offloading = true}), kUnits);
  const at::NoGradGuard no_grad;
  forward(layer_input({kTokens, kColumns}, 7), &offload);
  EXPECT_EQ(offload.traffic().to_host, 0);
}

// libtorch's allocations: between forward and backward only the last layer's input and the output are left.
TEST_F(ActivationOffloading, OnlyTheLastInputStaysOnTheDevice) {
  if (!torch_device(current_platform(), 0).is_cpu()) GTEST_SKIP() << "the meter counts allocations of the cpu";
  const ActivationOffload offload(device, moves({.cpu_offloading = true}), kUnits);
  const at::Tensor x = layer_input({kTokens, kColumns}, 8).requires_grad_(true);
  const auto bytes = static_cast<int64_t>(x.nbytes());
  const auto measured = [&](const ActivationOffload* by) {
    const auto meter = std::make_shared<MemoryMeter>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
    const at::Tensor y = forward(x, by);
    const int64_t held = meter->held;
    y.sum().backward();
    return std::pair(held, meter->most);
  };
  forward(x, nullptr).sum().backward();  // allocates the gradients
  const auto [held, most] = measured(&offload);
  const auto [held_without, most_without] = measured(nullptr);
  EXPECT_EQ(held_without, kUnits * bytes);  // x was allocated before
  EXPECT_EQ(held, 2 * bytes);               // the input of the last layer, and its output
  // The peak is in the backward of the last unit but one: its own input and the next one, instead of those of all
  // units up to it, of which the first is not counted.
  EXPECT_LE(most, most_without - (kUnits - 2 - 2) * bytes);
}

}  // namespace
}  // namespace concord
