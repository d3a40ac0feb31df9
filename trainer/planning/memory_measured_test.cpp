// The memory plan compared with what small runs allocate, by libtorch's reports: the state of every class exactly, and
// the peak of a step within a derived bound.
#include <ATen/Parallel.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/base/code_map.h"
#include "core/mesh/initialize.h"
#include "core/parallel/testing/memory_meter.h"
#include "core/torch/device.h"
#include "trainer/arguments/arguments.h"
#include "trainer/build.h"
#include "trainer/data/to_micro_batch.h"
#include "trainer/planning/memory_plan.h"
#include "trainer/train_step.h"

namespace concord {
namespace {

constexpr int64_t kTokens = 128, kRows = 4, kVocabulary = 1024;

constexpr const char* kConfig = R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 128,
 "intermediate_size": 352, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2,
 "vocab_size": 1024, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
 "hidden_act": "silu", "torch_dtype": "float32"})";

class Rows : public SampleSource {
 public:
  int64_t size() const override { return 64; }
  int64_t length(int64_t) const override { return kTokens; }
  bool joins_documents() const override { return true; }
  const std::string& name() const override { return name_; }
  Sample at(int64_t index) const override {
    Sample sample;
    for (int64_t t = 0; t < kTokens; ++t) {
      sample.ids.push_back((index * 31 + t * 7) % kVocabulary);
      sample.labels.push_back((index * 31 + (t + 1) * 7) % kVocabulary);
    }
    return sample;
  }

 private:
  std::string name_ = "rows";
};

struct Measured {
  MemoryPlan plan;
  int64_t weights = 0, frozen = 0, gradients = 0;
  std::map<std::string, int64_t> state;  // by key
  int64_t all_state = 0;                 // what building the run has allocated
  int64_t peak = 0;                      // of a step
};

Measured measured(std::vector<std::string> more) {
  at::set_num_threads(1);  // on a busy machine threads wait for each other
  std::vector<std::string> args = {"--seq_length", "128", "--per_device_train_batch_size", "4", "--max_steps", "2"};
  args.insert(args.end(), more.begin(), more.end());
  TrainingArguments arguments = parse_command_line(args).arguments;
  arguments.model.config = kConfig;
  arguments.has_datasets = true;
  const TrainingPlan plan = plan_training(resolve_arguments(arguments, 1), 0, 1, [](const TrainingArguments&) {
    return Datasets{.train = std::make_unique<Rows>(), .eval = nullptr};
  });
  ParallelContext& job = initialize(initialize_args(plan));
  Measured got;
  got.plan = plan_memory(plan, job.layout(), 0, micro_batch_shape(plan));
  const auto meter = std::make_shared<MemoryMeter>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
    TrainingParts parts(plan, job, {});
    got.all_state = meter->held;
    for (const GradBuffer* buffer : parts.data_parallel.buffers()) {
      got.weights += static_cast<int64_t>(buffer->values().nbytes());
      got.gradients += static_cast<int64_t>(buffer->grads().nbytes());
    }
    for (const Parameter* parameter : parts.model.parameters()) {
      if (parameter->frozen) got.frozen += static_cast<int64_t>(parameter->value.nbytes());
    }
    for (const OptimizerState::Entry& entry : parts.optimizer.saved_state()) {
      const std::string key = entry.key.substr(0, entry.key.find(kScaleKey));  // scales belong to their codes
      got.state[key] += static_cast<int64_t>(entry.values.nbytes());
    }
    for (int step = 0; step < 2; ++step) {
      const std::vector<MicroBatch> batches = next_micro_batches(*plan.train_data).value();
      meter->most = 0;
      StepAttempt attempt = run_or_replay(parts, batches);
      reduce_grads(parts, batches, &attempt);
      got.peak = meter->most;
      parts.optimizer.step({.lr = 1e-4});
    }
  }
  finalize();
  return got;
}

using Settings = std::vector<std::string>;

void expect_state(const Measured& got) {
  const MemoryPlan& plan = got.plan;
  const auto state = [&](const char* key) { return got.state.contains(key) ? got.state.at(key) : 0; };
  const auto planned = [&](TensorClass kind) {
    return plan.bytes(kind, Place::device) + plan.bytes(kind, Place::host);
  };
  EXPECT_EQ(plan.bytes(TensorClass::weights), got.weights);
  EXPECT_EQ(plan.bytes(TensorClass::frozen_weights), got.frozen);
  EXPECT_EQ(plan.bytes(TensorClass::gradients), got.gradients);
  EXPECT_EQ(planned(TensorClass::first_moments), state("exp_avg") + state("momentum") + state("momentum_buffer"));
  EXPECT_EQ(planned(TensorClass::second_moments), state("exp_avg_sq"));
  EXPECT_EQ(planned(TensorClass::average), state("ema"));
}

// Nothing else is allocated while a run is built, except on the host by the platform.
TEST(MeasuredMemory, TheStateIsExact) {
  const Settings settings[] = {
      {},
      {"--optim", "adamw_8bit"},
      {"--bf16", "--optim", "adamw_8bit"},
      {"--bf16", "--optim", "adamw_8bit", "--main_params_dtype", "remainder", "--main_grads_dtype", "bf16"},
      {"--bf16", "--main_params_dtype", "kahan_sum"},
      {"--bf16", "--main_params_dtype", "bf16_stochastic_round"},
      {"--exp_avg_dtype", "bf16"},
      {"--optimizer", "sgd"},
      {"--optimizer", "muon"},
      {"--ema_decay", "0.9"},
      {"--freeze", "embed_tokens,layers\\.[0-3]\\."},
      {"--bf16", "--finetuning_type", "lora", "--lora_rank", "4"}};
  for (const Settings& each : settings) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(each, " ")));
    const Measured got = measured(each);
    expect_state(got);
    // With a remainder and with stochastic rounding, "main" is the weight itself.
    const bool is_alone = std::ranges::find(each, "bf16_stochastic_round") != each.end();
    const char* const main = got.state.contains("main.remainder") ? "main.remainder" : "main";
    EXPECT_EQ(got.plan.bytes(TensorClass::main_weights),
              got.state.contains(main) && !is_alone ? got.state.at(main) : 0);
    int64_t state = 0;
    for (const PlacedTensors& tensors : got.plan.tensors) {
      state += tensors.moves == Moves::never ? tensors.least : 0;
    }
    EXPECT_EQ(got.all_state, state);
  }
}

TEST(MeasuredMemory, OffloadedStateIsOnTheHost) {
  for (const char* fraction : {"1", "0.3"}) {
    const Measured got = measured({"--bf16", "--optimizer_cpu_offload", "--optimizer_offload_fraction", fraction});
    expect_state(got);
    EXPECT_EQ(got.plan.bytes(TensorClass::main_weights) + got.plan.bytes(TensorClass::main_weights, Place::host),
              got.state.at("main"));
    const int64_t host_elements = got.plan.bytes(TensorClass::first_moments, Place::host) / 4;
    EXPECT_EQ(host_elements, std::llround(std::stod(fraction) * static_cast<double>(got.state.at("exp_avg") / 4)));
    EXPECT_EQ(got.plan.peak(Place::host), 18 * host_elements);  // gradients, weights, main weights, two moments
  }
}

// The weights are not on the host, and there are buffers for chunks on the device.
TEST(MeasuredMemory, StreamedStateIsOnTheHost) {
  for (const Settings& more : {Settings{}, Settings{"--optim", "adamw_8bit", "--main_params_dtype", "remainder"}}) {
    Settings settings = {"--bf16", "--optimizer_cpu_offload", "--optimizer_offload_update", "device"};
    settings.insert(settings.end(), more.begin(), more.end());
    const Measured got = measured(settings);
    expect_state(got);
    int64_t state = 0;
    for (const auto& [key, bytes] : got.state) state += key == "main" && !more.empty() ? 0 : bytes;
    EXPECT_EQ(got.plan.peak(Place::host), state);
    const int64_t buffers = got.plan.bytes(TensorClass::stream_buffers);
    EXPECT_EQ(got.all_state, got.weights + got.gradients + buffers);
    EXPECT_GE(buffers, state);  // a model of one chunk
  }
}

// In fp32, in which the host's operators need no copies in another type. Not planned: rope's angles, cosines and sines
// of 128 tokens and 16 columns at most twice; ids and labels of 512 tokens; their losses; sums for norms.
TEST(MeasuredMemory, ThePeakOfAStepIsThatOfThePlan) {
  constexpr int64_t kSmall = 2 * (2 * kTokens * 16 * 4) + kRows * kTokens * (2 * 8 + 4 * 4);
  const Settings settings[] = {
      {},
      {"--recompute_granularity", "full"},
      {"--recompute_granularity", "full", "--recompute_method", "block", "--recompute_num_layers", "4"},
      {"--recompute_granularity", "selective", "--recompute_modules", "layernorm,mlp_act"},
      {"--recompute_granularity", "selective", "--recompute_modules", "mlp"},
      {"--recompute_granularity", "selective", "--recompute_modules", "core_attn"},
      {"--loss_chunk_size", "128"},
      {"--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"},
      {"--optimizer_cpu_offload"},
      {"--optimizer_cpu_offload", "--optimizer_offload_update", "device"}};
  for (const Settings& each : settings) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(each, " ")));
    const Measured got = measured(each);
    const int64_t predicted = got.plan.peak(Place::device);
    std::printf("%-60s predicted %lld, measured %lld: %.4f\n", fmt::format("{}", fmt::join(each, " ")).c_str(),
                static_cast<long long>(predicted), static_cast<long long>(got.peak),
                static_cast<double>(got.peak) / static_cast<double>(predicted));
    EXPECT_GE(got.peak, predicted);
    EXPECT_LE(got.peak, predicted + kSmall);
    EXPECT_LE(got.plan.least(Place::device), got.peak);
  }
}

// An adapter's A and B compute with up to 7 x 8 columns per token and layer, and their inputs are the planned ones.
TEST(MeasuredMemory, ThePeakWithAnAdapterIsNearThePlan) {
  const Measured got = measured({"--finetuning_type", "lora", "--lora_rank", "8"});
  const int64_t columns = int64_t{8} * 7 * 8 * kRows * kTokens * 4;
  EXPECT_NEAR(static_cast<double>(got.peak), static_cast<double>(got.plan.peak(Place::device)),
              static_cast<double>(columns));
  EXPECT_LE(got.plan.least(Place::device), got.peak);
}

}  // namespace
}  // namespace concord
