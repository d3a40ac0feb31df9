#include "trainer/planning/memory_fit.h"

#include <gmock/gmock.h>

#include "trainer/arguments/arguments.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kQwen7B = R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584,
 "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
 "vocab_size": 152064, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
 "hidden_act": "silu", "torch_dtype": "bfloat16"})";

TrainingArguments run_of(std::vector<std::string> more) {
  std::vector<std::string> args = {"--bf16", "--seq_length", "4096", "--per_device_train_batch_size", "4"};
  args.insert(args.end(), more.begin(), more.end());
  TrainingArguments arguments = parse_command_line(args).arguments;
  arguments.model.config = kQwen7B;
  return resolve_arguments(arguments, 1);
}

std::vector<std::string> changes(double gib, std::vector<std::string> more = {}, bool more_ranks = true) {
  const AvailableMemory available{.device = static_cast<int64_t>(gib * (1 << 30))};
  const auto fit = cheapest_fit(run_of(std::move(more)), 1, available, more_ranks);
  return fit ? fit->changes : std::vector<std::string>{"nothing fits"};
}

// State of 127.7 GiB with fp32 moments, 85.3 with 8-bit ones; saved activations 67.9, 45.6 without norms and products,
// and 3.1 with full recomputation, plus logits and a layer's work.
TEST(MemoryFit, ChoosesTheCheapestChange) {
  EXPECT_THAT(changes(256), IsEmpty());
  EXPECT_THAT(changes(190), ElementsAre("--optim", "adamw_8bit"));
  EXPECT_THAT(changes(105, {"--per_device_train_batch_size", "1"}),
              ElementsAre("--optim", "adamw_8bit", "--recompute_granularity", "selective", "--recompute_modules",
                          "layernorm,mlp_act"));
  EXPECT_THAT(changes(128), ElementsAre("--optim", "adamw_8bit", "--per_device_train_batch_size", "2",
                                        "--gradient_accumulation_steps", "2"));
  EXPECT_THAT(changes(80, {"--per_device_train_batch_size", "1"}, false),
              ElementsAre("--optimizer_cpu_offload", "--optimizer_offload_update", "device"));  // 42.6 and 19
  EXPECT_THAT(changes(60, {"--per_device_train_batch_size", "1"}, false),
              ElementsAre("--recompute_granularity", "selective", "--recompute_modules", "layernorm,mlp_act",
                          "--optimizer_cpu_offload", "--optimizer_offload_update", "device"));
}

TEST(MemoryFit, TakesMoreRanksLast) {
  EXPECT_THAT(changes(24, {"--per_device_train_batch_size", "1"}, false), ElementsAre("nothing fits"));
  const auto words = changes(24, {"--per_device_train_batch_size", "1"});
  EXPECT_THAT(to_text(words), AllOf(HasSubstr("--nproc "), HasSubstr("--tensor_model_parallel_size ")));
}

TEST(MemoryFit, RefusesOnlyWhatIsCertainNotToFit) {
  const TrainingPlan plan = plan_model(run_of({}));
  const RankLayout layout = layout_of(initialize_args(plan), 1);
  const MemoryPlan memory = plan_memory(plan, layout, 0, micro_batch_shape(plan));
  const int64_t least = memory.least(Place::device);
  EXPECT_LT(least, memory.peak(Place::device));
  EXPECT_EQ(memory_shortage(plan, layout, 0, {.device = least}), "");
  const std::string text = memory_shortage(plan, layout, 0, {.device = least - 1});
  EXPECT_THAT(text, AllOf(HasSubstr("at least 128 GiB"), HasSubstr(std::to_string(least)),
                          HasSubstr("first moments in fp32 28.4 GiB"), HasSubstr("the run fits: --optim adamw_8bit"),
                          HasSubstr("check_memory false")));
}

TEST(MemoryFit, ForecastNamesAChangeIfTheDeviceIsTooSmall) {
  const TrainingPlan plan = plan_model(run_of({}));
  const RankLayout layout = layout_of(initialize_args(plan), 1);
  const int64_t expected = expected_in_use(plan_memory(plan, layout, 0, micro_batch_shape(plan)).peak(Place::device));
  EXPECT_THAT(memory_forecast(plan, layout, {.device = expected}), Not(HasSubstr("too much")));
  EXPECT_THAT(memory_forecast(plan, layout, {.device = expected - 1}),
              AllOf(HasSubstr("too much"), HasSubstr("the run fits: --optim adamw_8bit")));
}

}  // namespace
}  // namespace concord
