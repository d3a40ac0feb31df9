// The memory of models of real shapes, compared with numbers derived by hand: parameters times bytes, and bytes per
// token and layer.
#include "trainer/planning/memory_plan.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "core/base/config_error.h"
#include "trainer/arguments/arguments.h"

namespace concord {
namespace {

constexpr double kGiB = 1 << 30;

struct Shape {
  const char* name;
  int64_t hidden, layers, inner, heads, kv_heads, vocabulary;
  bool bias;
  int64_t parameters;  // of the published models
  bool is_tied = false;
};
const Shape k7B{"7B", 3584, 28, 18944, 28, 4, 152064, true, 7615616512, false};
const Shape k8B{"8B", 4096, 32, 14336, 32, 8, 128256, false, 8030261248, false};
const Shape k14B{"14B", 5120, 48, 13824, 40, 8, 152064, true, 14770033664, false};
const Shape k32B{"32B", 5120, 64, 27648, 40, 8, 152064, true, 32763876352, false};

std::string config_of(const Shape& shape) {
  return fmt::format(
      R"({{"model_type": "{}", "architectures": ["{}ForCausalLM"], "hidden_size": {}, "intermediate_size": {},
 "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {}, "vocab_size": {},
 "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": {}, "hidden_act": "silu",
 "torch_dtype": "bfloat16"}})",
      shape.bias ? "qwen2" : "llama", shape.bias ? "Qwen2" : "Llama", shape.hidden, shape.inner, shape.layers,
      shape.heads, shape.kv_heads, shape.vocabulary, shape.is_tied);
}

TrainingArguments arguments_of(const Shape& shape, std::vector<std::string> more = {}) {
  std::vector<std::string> args = {"--bf16", "--seq_length", "4096", "--per_device_train_batch_size", "4"};
  args.insert(args.end(), more.begin(), more.end());
  TrainingArguments arguments = parse_command_line(args).arguments;
  arguments.model.config = config_of(shape);
  return resolve_arguments(arguments, 1);
}

MemoryPlan planned(const Shape& shape, std::vector<std::string> more = {}, int64_t world = 1) {
  const TrainingPlan plan = plan_model(arguments_of(shape, std::move(more)));
  return largest_memory_plan(plan, layout_of(initialize_args(plan), world), micro_batch_shape(plan)).memory;
}

double gib(int64_t bytes) { return static_cast<double>(bytes) / kGiB; }

int64_t state(const MemoryPlan& memory, Place place = Place::device) {
  int64_t bytes = 0;
  for (const TensorClass kind : {TensorClass::weights, TensorClass::frozen_weights, TensorClass::gradients,
                                 TensorClass::main_weights, TensorClass::first_moments, TensorClass::second_moments}) {
    bytes += memory.bytes(kind, place);
  }
  return bytes;
}

// Parameters start at multiples of 64 elements in their buffer, so it has a little more than the model.
void expect_bytes(int64_t bytes, const Shape& shape, double per_parameter) {
  const double expected = static_cast<double>(shape.parameters) * per_parameter;
  EXPECT_GE(static_cast<double>(bytes), expected * (1 - 1e-9)) << shape.name;
  EXPECT_LE(static_cast<double>(bytes), expected * (1 + 1e-4)) << shape.name;
}

TEST(MemoryPlan, StateOfRealModelsIsParametersTimesBytes) {
  for (const Shape& shape : {k7B, k8B, k14B, k32B}) {
    const MemoryPlan wide = planned(shape);
    expect_bytes(wide.bytes(TensorClass::weights), shape, 2);
    expect_bytes(wide.bytes(TensorClass::gradients), shape, 4);
    expect_bytes(wide.bytes(TensorClass::main_weights), shape, 4);
    expect_bytes(wide.bytes(TensorClass::first_moments), shape, 4);
    expect_bytes(state(wide), shape, 18);
    expect_bytes(
        state(planned(shape, {"--exp_avg_dtype", "bf16", "--exp_avg_sq_dtype", "bf16", "--adam_beta2", "0.95"})), shape,
        14);
    const int64_t blocks = state(planned(shape, {"--optim", "adamw_8bit"}));
    expect_bytes(blocks, shape, 2 + 4 + 4 + 2 * (1 + 4.0 / 256));
  }
}

// 10 hidden + 2 qkv + 6 inner + 4 heads bytes per token and layer in bf16, in GiB of 16,384 tokens with one decimal,
// without the two norms' numbers of 8 bytes.
TEST(MemoryPlan, ActivationsOfRealModelsAreThoseOfTheFormula) {
  const double all[] = {67.9, 68.1, 108.9, 226.0}, cheap[] = {45.6, 46.1, 73.6, 152.0}, full[] = {3.1, 4.0, 7.5, 10.0};
  const Shape* shapes[] = {&k7B, &k8B, &k14B, &k32B};
  const auto saved = [](const MemoryPlan& memory) {
    int64_t bytes = 0;
    for (const PlacedTensors& each : memory.tensors) bytes += each.moves == Moves::forward ? each.bytes : 0;
    return gib(bytes);
  };
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(saved(planned(*shapes[i])), all[i], 0.35 / 68 * all[i]) << shapes[i]->name;
    EXPECT_NEAR(saved(planned(*shapes[i],
                              {"--recompute_granularity", "selective", "--recompute_modules", "layernorm,mlp_act"})),
                cheap[i], 0.35 / 68 * all[i])
        << shapes[i]->name;
    EXPECT_NEAR(saved(planned(*shapes[i], {"--recompute_granularity", "full"})), full[i], 0.06) << shapes[i]->name;
  }
  EXPECT_NEAR(gib(planned(k7B).bytes(TensorClass::logits)), 16384.0 * 152064 * 2 / kGiB, 1e-9);
}

// 256k tokens of hidden size 4,096 are 64 tiles: gate, up and their product, and two gradients of that size, exist for
// one tile.
TEST(MemoryPlan, MlpsInTilesTakeTheMemoryOfATile) {
  const std::vector<std::string> whole = {
      "--seq_length", "262144", "--per_device_train_batch_size", "1", "--recompute_granularity", "full"};
  std::vector<std::string> tiled = whole;
  tiled.emplace_back("--tiled_mlp");
  const MemoryPlan a = planned(k8B, whole), b = planned(k8B, tiled);
  const int64_t saved = k8B.inner * 2 * (262144 - 4096);
  EXPECT_EQ(a.bytes(TensorClass::recomputed) - b.bytes(TensorClass::recomputed), 3 * saved);
  EXPECT_EQ(a.bytes(TensorClass::activation_gradients) - b.bytes(TensorClass::activation_gradients), 2 * saved);
  EXPECT_EQ(a.bytes(TensorClass::layer_inputs), b.bytes(TensorClass::layer_inputs));
}

TEST(MemoryPlan, ThePeakIsOfTheLossOrOfALayer) {
  MemoryPlan memory;
  memory.add({TensorClass::weights, "bf16", Place::device, Moves::never, 100, 100});
  memory.add({TensorClass::logits, "bf16", Place::device, Moves::loss, 30, 0});
  memory.add({TensorClass::recomputed, "bf16", Place::device, Moves::layer, 20, 0});
  memory.add({TensorClass::activation_gradients, "bf16", Place::device, Moves::layer, 20, 0});
  memory.add({TensorClass::gradients, "fp32", Place::host, Moves::each_step, 7, 7});
  EXPECT_EQ(memory.peak(Place::device), 140);
  EXPECT_EQ(memory.least(Place::device), 100);
  EXPECT_EQ(memory.peak(Place::host), 7);
}

TEST(MemoryPlan, AnOffloadedOptimizerIsOnTheHost) {
  const MemoryPlan half = planned(k7B, {"--optimizer_cpu_offload", "--optimizer_offload_fraction", "0.5"});
  const MemoryPlan whole = planned(k7B, {"--optimizer_cpu_offload"});
  expect_bytes(state(whole), k7B, 6);
  // gradients, weights, main weights and moments
  expect_bytes(state(whole, Place::host), k7B, 18);
  expect_bytes(state(half), k7B, 12);
  expect_bytes(state(half, Place::host), k7B, 9);
}

TEST(MemoryPlan, AStreamedOptimizerHasNoWeightsOnTheHostAndThreeBuffersOnTheDevice) {
  const MemoryPlan streamed = planned(k7B, {"--optimizer_cpu_offload", "--optimizer_offload_update", "device"});
  expect_bytes(state(streamed, Place::host), k7B, 12);
  EXPECT_EQ(streamed.bytes(TensorClass::stream_buffers), 3 * (int64_t{1} << 22) * 12);
}

TEST(MemoryPlan, ShardsAndStagesDivideTheState) {
  const MemoryPlan whole = planned(k7B);
  const MemoryPlan zero = planned(k7B, {"--use_distributed_optimizer"}, 4);
  EXPECT_EQ(zero.bytes(TensorClass::weights) / 1000000, whole.bytes(TensorClass::weights) / 1000000);
  EXPECT_NEAR(gib(zero.bytes(TensorClass::main_weights)), gib(whole.bytes(TensorClass::main_weights)) / 4, 0.01);
  const MemoryPlan tensor = planned(k7B, {"--tensor_model_parallel_size", "4"}, 4);
  EXPECT_NEAR(gib(tensor.bytes(TensorClass::weights)), gib(whole.bytes(TensorClass::weights)) / 4, 0.01);
  EXPECT_NEAR(gib(tensor.bytes(TensorClass::mlp)), gib(whole.bytes(TensorClass::mlp)) / 4, 0.01);
  const MemoryPlan pipeline =
      planned(k7B, {"--pipeline_model_parallel_size", "4", "--gradient_accumulation_steps", "8"}, 4);
  // The first stage of 1F1B holds four micro-batches of a quarter of the layers.
  EXPECT_EQ(pipeline.bytes(TensorClass::mlp), whole.bytes(TensorClass::mlp));
}

// With QLoRA weights of linear layers have 0.5 bytes, a byte for 64 and four for 64 x 256; embeddings are bf16.
TEST(MemoryPlan, FrozenWeightsHaveNoState) {
  const MemoryPlan lora = planned(k7B, {"--finetuning_type", "lora", "--lora_rank", "16"});
  EXPECT_EQ(lora.bytes(TensorClass::frozen_weights), k7B.parameters * 2);
  const int64_t trained = lora.bytes(TensorClass::main_weights) / 4;
  EXPECT_EQ(trained, 40370176);  // as peft counts them for Qwen2.5-7B with rank 16 and all linear layers
  const MemoryPlan qlora = planned(k7B, {"--finetuning_type", "lora", "--lora_rank", "16", "--quantization_bit", "4"});
  const double linear = 28.0 * (3584 * 4608 + 3584 * 3584 + 3.0 * 3584 * 18944);
  EXPECT_NEAR(static_cast<double>(qlora.bytes(TensorClass::frozen_weights)),
              2 * (static_cast<double>(k7B.parameters) - linear) + linear * (0.5 + 1 / 64.0 + 4 / 64.0 / 256), 1e4);
}

// What is certain is at most what is predicted, and without rows of a known length only the state is.
TEST(MemoryPlan, OnlyTheStateIsCertainUnlessAllRowsAreFull) {
  const TrainingPlan plan = plan_model(arguments_of(k7B));
  const RankLayout layout = layout_of(initialize_args(plan), 1);
  const MemoryPlan some = plan_memory(plan, layout, 0, {.rows = 4, .tokens = 4096});
  const MemoryPlan full = plan_memory(plan, layout, 0, {.rows = 4, .tokens = 4096, .has_full_rows = true});
  EXPECT_EQ(some.least(Place::device), state(some));
  EXPECT_EQ(full.peak(Place::device), some.peak(Place::device));
  EXPECT_GT(full.least(Place::device), state(full) + int64_t{67} * (1 << 30));
  EXPECT_LT(full.least(Place::device), full.peak(Place::device));
}

// memory_bytes of runs on an H200, in GiB (docs/results/h200-training.md): without recomputation or with few rows. With
// it and many rows libtorch kept up to 40 % more than it needed.
TEST(MemoryPlan, MemoryInUseIsThatOfRunsOnAnH200) {
  const Shape small{"0.5B", 896, 24, 4864, 14, 2, 151936, true, 0, true},
      medium{"1.5B", 1536, 28, 8960, 12, 2, 151936, true, 0, true};
  const std::vector<std::string> norms = {"--recompute_granularity", "selective", "--recompute_modules", "layernorm"};
  const std::vector<std::string> narrow = {"--adam_beta2",       "0.95", "--main_params_dtype", "remainder",
                                           "--main_grads_dtype", "bf16", "--exp_avg_dtype",     "8bit",
                                           "--exp_avg_sq_dtype", "8bit"};
  const auto with_recompute = [&](const char* modules) {
    std::vector<std::string> all = narrow;
    all.insert(all.end(), {"--recompute_granularity", "selective", "--recompute_modules", modules});
    return all;
  };
  const std::vector<std::string> all_logits = {"--loss_chunk_size", "0"};
  const struct {
    Shape shape;
    int rows;
    std::vector<std::string> more;
    double gib;
  } runs[] = {{small, 4, {}, 29.1},
              {small, 8, {}, 44.0},
              {small, 16, {}, 74.6},
              {small, 32, {}, 135.0},
              {small, 8, all_logits, 48.6},
              {small, 24, all_logits, 127.6},
              {small, 4, norms, 27.8},
              {medium, 4, {}, 63.6},
              {medium, 8, {}, 96.3},
              {medium, 8, all_logits, 100.0},
              {medium, 11, all_logits, 127.4},
              {medium, 4, {norms[0], norms[1], norms[2], "layernorm,mlp_act"}, 53.7},
              {k7B, 4, {"--finetuning_type", "lora", "--lora_rank", "16"}, 90.1},
              {k7B, 1, {"--optim", "adamw_8bit"}, 113.75e9 / kGiB},
              {k7B, 1, narrow, 79.6},
              {k7B, 4, narrow, 136.1},
              {small, 4, narrow, 25.6},
              {k14B, 1, with_recompute("layernorm,mlp"), 127.7},
              {k14B, 1, with_recompute("layernorm,mlp_act"), 137.4}};
  for (const auto& run : runs) {
    std::vector<std::string> more = {"--per_device_train_batch_size", std::to_string(run.rows)};
    more.insert(more.end(), run.more.begin(), run.more.end());
    const double expected = gib(expected_in_use(planned(run.shape, more).peak(Place::device)));
    EXPECT_NEAR(expected, run.gib, 0.015 * run.gib) << run.shape.name << " " << fmt::format("{}", fmt::join(more, " "));
  }
}

TEST(MemoryPlan, TextHasARowPerClassAndTheTotals) {
  const std::string text = to_text(planned(k7B, {"--optim", "adamw_8bit", "--per_device_train_batch_size", "1"}));
  for (const char* row : {"weights               bf16  device ", "main weights          fp32  device ",
                          "second moments        8bit  device ", "predicted peak of the device: "}) {
    EXPECT_NE(text.find(row), std::string::npos) << row << "\n" << text;
  }
  std::printf("%s", text.c_str());
}

}  // namespace
}  // namespace concord
