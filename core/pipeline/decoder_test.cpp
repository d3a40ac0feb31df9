// Replayed steps of generation, on a device that records operators.
#include "core/pipeline/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/mesh/initialize.h"
#include "core/torch/testing/recording_device.h"
#include "platform/loader/error.h"
#include "platform/loader/host.h"

namespace concord {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kWindow = R"(, "sliding_window": 5, "use_sliding_window": true, "max_window_layers": 1)";
constexpr const char* kExperts = R"(, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6,
    "shared_expert_intermediate_size": 10)";
constexpr const char* kDelta = R"(, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_conv_kernel_dim": 3,
    "partial_rotary_factor": 0.5, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6,
    "shared_expert_intermediate_size": 10)";

ModelConfig small_model(const std::string& type, const std::string& more) {
  return parse_model_config(R"({"model_type": ")" + type + R"(", "vocab_size": 40, "hidden_size": 16,
      "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "head_dim": 4, "initializer_range": 0.2)" +
                                more + "}",
                            "config.json");
}

class ReplayedSteps : public ::testing::Test {
 protected:
  ParallelContext& job_ = initialize({});
  ReplayedSteps() { device = std::make_unique<FakeDevice>(); }
  ~ReplayedSteps() override {
    loader::override_config("decode", std::nullopt);
    finalize();
  }

  // The logits of each of |steps|, greedily, for two prompts of different lengths of which the second ends early.
  std::vector<at::Tensor> generate(VirtualModels& models, int steps = 9) {
    Decoder decoder(models, job_, 2, 20);
    at::Tensor ids = at::arange(18, at::kLong).mul(7).remainder(40).view({2, 9});
    at::Tensor counts = at::tensor({9, 4}, at::kLong);
    std::vector<at::Tensor> logits;
    for (int step = 0; step < steps; ++step) {
      logits.push_back(decoder.step({ids, counts}).clone());
      ids = logits.back().argmax(-1, /*keepdim=*/true);
      counts = at::tensor({1, step < 6 ? 1 : 0}, at::kLong);
      is_replayed_ = decoder.is_replayed();
    }
    return logits;
  }
  std::vector<at::Tensor> generate_eagerly(VirtualModels& models) {
    loader::override_config("decode", "eager");
    const auto logits = generate(models);
    loader::override_config("decode", std::nullopt);
    return logits;
  }

  static void expect_same(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const int64_t rows = i > 6 ? 1 : 2;  // what has ended means nothing
      EXPECT_TRUE(got[i].narrow(0, 0, rows).equal(expected[i].narrow(0, 0, rows))) << "step " << i;
    }
  }

  bool is_replayed_ = false;  // the last step
};

TEST_F(ReplayedSteps, GiveTheLogitsOfStepsThatAreNotReplayed) {
  for (const auto& [type, more] : std::vector<std::pair<std::string, std::string>>{
           {"qwen2", kWindow}, {"llama", ""}, {"gpt_oss", kExperts}, {"qwen2_moe", kExperts}, {"qwen3_next", kDelta}}) {
    SCOPED_TRACE(type);
    VirtualModels models = AutoModel::from_config(small_model(type, more), {.dtype = at::kFloat}, job_);
    const auto expected = generate_eagerly(models);
    EXPECT_FALSE(is_replayed_);
    device = std::make_unique<FakeDevice>();
    const auto got = generate(models);
    EXPECT_TRUE(is_replayed_);
    EXPECT_EQ(device->replays, 7);  // not the prompts and the first token, which is for kernels to load
    EXPECT_EQ(device->releases, 1);
    expect_same(got, expected);
  }
}

// A recording may fail at any call; what it has seen so far must leave no trace.
TEST_F(ReplayedSteps, AreNoneWhereARecordingFails) {
  VirtualModels models = AutoModel::from_config(small_model("qwen3_next", kDelta), {.dtype = at::kFloat}, job_);
  const auto expected = generate_eagerly(models);
  device = std::make_unique<FakeDevice>();
  generate(models);
  const int64_t all = device->calls;
  ASSERT_GT(all, 50);
  for (int64_t calls = all; calls > 0; calls -= 7) {
    SCOPED_TRACE(calls);
    device = std::make_unique<FakeDevice>();
    device->fails_after = calls;
    expect_same(generate(models), expected);
    EXPECT_FALSE(is_replayed_);
    EXPECT_EQ(device->replays, 0);
    EXPECT_EQ(device->releases, 1);
  }
  device = std::make_unique<FakeDevice>();
  device->refuses = true;
  expect_same(generate(models), expected);
  EXPECT_EQ(device->releases, 0);
}

TEST_F(ReplayedSteps, FollowWeightsThatChangeBetweenDecoders) {
  VirtualModels models = AutoModel::from_config(small_model("llama", ""), {.dtype = at::kFloat}, job_);
  const auto before = generate(models);
  {
    const at::NoGradGuard no_grad;
    for (Parameter& parameter : models[0].parameters()) parameter.value.mul_(1.25);
  }
  const auto after = generate(models);
  EXPECT_FALSE(after[5].equal(before[5]));
  expect_same(after, generate_eagerly(models));
}

TEST_F(ReplayedSteps, RefuseAnUnknownSetting) {
  VirtualModels models = AutoModel::from_config(small_model("llama", ""), {.dtype = at::kFloat}, job_);
  loader::override_config("decode", "graph");
  EXPECT_THAT([&] { Decoder(models, job_, 1, 8); },
              ThrowsMessage<Error>(HasSubstr("CONCORD_DECODE is 'graph'; it must be replay")));
}

}  // namespace
}  // namespace concord
