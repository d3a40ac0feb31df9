// Replayed steps of generation, on the cpu: a recorder of operators takes the place of a device's. As a device does, it
// keeps calls with the tensors they were given, so a step that makes new tensors of its state, or that depends on a
// number of the host, gives other logits when it is replayed.
#include "core/pipeline/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gmock/gmock.h>
#include <torch/library.h>

#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/mesh/initialize.h"
#include "platform/loader/error.h"
#include "platform/loader/host.h"

namespace concord {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr auto kRecording = c10::DispatchKey::TESTING_ONLY_GenericMode;

// ---------------------------------------------------------------------------------------------------- the recorder

struct Call {
  c10::OperatorHandle op;
  torch::jit::Stack arguments, results;
};

class Recording {
 public:
  void add(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard directly(kRecording);
    const std::string& name = op.schema().name();
    if (name == "aten::item" || name == "aten::_local_scalar_dense" || name == "aten::equal" || --left_ == 0) {
      throw std::runtime_error(name + " is not permitted while recording");
    }
    const size_t count = op.schema().arguments().size();
    Call call{op, {stack->end() - static_cast<std::ptrdiff_t>(count), stack->end()}, {}};
    for (size_t i = 0; i < count; ++i) {
      const auto* alias = op.schema().arguments()[i].alias_info();
      if (alias == nullptr || !alias->isWrite()) continue;
      for (const at::Tensor& each : tensors_in(call.arguments[i])) written_.emplace_back(each, each.clone());
    }
    op.callBoxed(*stack);
    call.results = {stack->end() - static_cast<std::ptrdiff_t>(op.schema().returns().size()), stack->end()};
    calls_.push_back(std::move(call));
  }

  // On a device nothing has happened while it recorded.
  void take_back() {
    while (!written_.empty()) {
      written_.back().first.copy_(written_.back().second);
      written_.pop_back();
    }
  }

  void replay() const {
    for (const Call& call : calls_) {
      torch::jit::Stack stack = call.arguments;
      call.op.callBoxed(stack);
      for (size_t i = 0; i < stack.size(); ++i) {
        const auto made = tensors_in(stack[i]), kept = tensors_in(call.results[i]);
        for (size_t j = 0; j < made.size(); ++j) {
          if (made[j].data_ptr() != kept[j].data_ptr()) kept[j].copy_(made[j]);
        }
      }
    }
  }

  void fail_after(int64_t calls) { left_ = calls; }
  int64_t size() const { return std::ssize(calls_); }

 private:
  static std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined()) return {value.toTensor()};
    return value.isTensorList() ? value.toTensorVector() : std::vector<at::Tensor>();
  }

  std::vector<Call> calls_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;  // with what they held before
  int64_t left_ = -1;
};

struct FakeDevice {
  std::unique_ptr<Recording> recording;
  std::optional<c10::impl::IncludeDispatchKeyGuard> records;
  int64_t fails_after = -1;  // calls; -1: never
  bool refuses = false;
  int64_t calls = 0;  // of the last recording
  int replays = 0, releases = 0;
};
std::unique_ptr<FakeDevice> device;

void record_call(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (op.schema().name().starts_with("concord_graph::")) {
    const c10::impl::ExcludeDispatchKeyGuard directly(kRecording);
    return op.callBoxed(*stack);
  }
  device->recording->add(op, stack);
}
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&record_call>());
}

int64_t begin_recording(const at::Tensor&) {
  if (device->refuses) return 0;
  device->recording = std::make_unique<Recording>();
  device->recording->fail_after(device->fails_after);
  device->records.emplace(kRecording);
  return 1;
}
bool end_recording(const at::Tensor&, int64_t) {
  device->records.reset();
  const at::NoGradGuard no_grad;
  device->recording->take_back();
  device->calls = device->recording->size();
  return true;
}
void replay_recording(const at::Tensor&, int64_t) {
  const at::NoGradGuard no_grad;
  device->recording->replay();
  ++device->replays;
}
void release_recording(const at::Tensor&, int64_t) {
  device->recording.reset();
  ++device->releases;
}
TORCH_LIBRARY_IMPL(concord_graph, CPU, m) {
  m.impl("begin", begin_recording);
  m.impl("end", end_recording);
  m.impl("replay", replay_recording);
  m.impl("release", release_recording);
}

// ----------------------------------------------------------------------------------------------------------- tests

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
