// Configurations of other programs, as people paste them: what can be taken is, the rest is named with what to write.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "core/base/config_error.h"
#include "tests/temporary_folder.h"
#include "trainer/arguments/arguments.h"
#include "trainer/arguments/foreign/foreign.h"
#include "trainer/arguments/foreign/samples_test.h"
#include "trainer/arguments/table.h"
#include "trainer/arguments/toml.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ForeignConfig : public ::testing::Test {
 protected:
  // |text| in a file with the ending |end|.
  std::string write(const std::string& text, const std::string& end = ".yaml") const {
    const std::string path = folder_.path() + "/config" + end;
    std::ofstream(path) << text;
    return path;
  }
  CommandLine read(const std::string& text, const std::string& end = ".yaml") const {
    return parse_command_line(std::vector<std::string>{"--config", write(text, end)});
  }
  std::vector<std::string> errors(const std::string& text, const std::string& end = ".yaml") const {
    try {
      read(text, end);
    } catch (const ConfigError& error) {
      return lines_of(error.what());
    }
    return {};
  }
  // Without the lines that begin with one of |names|.
  static std::string without(const std::string& text, const std::set<std::string>& names) {
    std::string rest;
    for (const std::string& line : lines_of(text)) {
      const size_t begin = line.find_first_not_of(' ');
      const size_t end = line.find_first_of(":= ", begin == std::string::npos ? 0 : begin);
      const bool is_named = begin != std::string::npos && names.contains(line.substr(begin, end - begin));
      if (!is_named) rest += line + "\n";
    }
    return rest;
  }
  static std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }

  tests::TemporaryFolder folder_;
};

TEST_F(ForeignConfig, TheTrainingArgumentsOfHuggingFaceAreTaken) {
  const CommandLine line = read(kHuggingFace);
  const TrainingArguments& a = line.arguments;
  EXPECT_EQ(a.model.path, "models/qwen2");
  EXPECT_EQ(a.optimizer.optimizer, OptimizerType::adam);
  EXPECT_EQ(a.data.micro_batch_size, 4);
  EXPECT_EQ(a.lr.lr_scheduler_type, "cosine");
  EXPECT_EQ(a.evaluation.strategy, IntervalStrategy::no);
  EXPECT_TRUE(a.precision.bf16);
  EXPECT_LT(line.notes.size(), 12u) << "a line for each reason, not for each name";
  EXPECT_THAT(line.notes, ::testing::Contains(AllOf(HasSubstr("dataloader_pin_memory"), HasSubstr("have no effect"))));
  EXPECT_THAT(line.notes, ::testing::Contains(HasSubstr("do_train")));
}

TEST_F(ForeignConfig, OneOfLlamaFactoryIsTaken) {
  const std::string deepspeed = write(R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
      "bf16": {"enabled": "auto"}, "gradient_clipping": 0.5})",
                                      ".json");
  std::string text = kLlamaFactory;
  const std::string published = "examples/deepspeed/ds_z3_config.json";
  text.replace(text.find(published), published.size(), deepspeed);
  const CommandLine line = read(text);
  const TrainingArguments& a = line.arguments;
  EXPECT_EQ(a.model.path, "models/llama3-8b");
  EXPECT_EQ(a.data.cutoff_len, 2048);
  EXPECT_EQ(a.dataset.name, "identity,alpaca_en_demo");
  EXPECT_EQ(a.data.chat_template, "") << "the model's own";
  EXPECT_EQ(a.job.ddp_timeout, 180000000);
  EXPECT_THAT(a.data.split, ElementsAre("0.9", "0.1", "0")) << "val_size";
  EXPECT_TRUE(a.data_parallel.use_distributed_optimizer);
  EXPECT_EQ(a.optimizer.max_grad_norm, 0.5);
  EXPECT_THAT(line.notes, ::testing::Contains(AllOf(HasSubstr("deepspeed: "), HasSubstr("ZeRO stage 2"))));
}

TEST_F(ForeignConfig, OneOfMegatronIsTaken) {
  EXPECT_THAT(errors(kMegatron), ElementsAre(HasSubstr("vocab_size is missing; give it, or model_config")));
  const std::set<std::string> shape = {"num_layers", "hidden_size", "num_attention_heads", "normalization"};
  TrainingArguments a = read(without(kMegatron, shape) + "model_config: config.json\n").arguments;
  EXPECT_EQ(a.lr.learning_rate, 2.5e-4);
  EXPECT_EQ(a.steps.max_steps, 500000);
  EXPECT_EQ(a.data.path, "data/corpus_text_document");
  EXPECT_EQ(a.lr.warmup_steps, 100);
  EXPECT_EQ(a.optimizer.max_grad_norm, 1);
  EXPECT_EQ(a.output.dir, "checkpoints");
  EXPECT_EQ(a.logging.steps, 100);
  EXPECT_EQ(a.job.tensor_model_parallel_size, 2);
  EXPECT_TRUE(a.precision.bf16 && a.model_options.sequence_parallel);
  check_arguments(a, 16);  // 8 of them data parallel
  a = resolve_arguments(a, 16);
  EXPECT_EQ(a.data.accumulation, 8);
}

TEST_F(ForeignConfig, OneOfTorchtitanIsTaken) {
  EXPECT_THAT(errors(kTorchtitan, ".toml"), ElementsAre(HasSubstr("training.dataset is the string"))) << "c4 is a name";
  const CommandLine line = read(without(kTorchtitan, {"dataset"}), ".toml");
  EXPECT_EQ(line.arguments.lr.learning_rate, 3e-4);
  EXPECT_EQ(line.arguments.optimizer.optimizer, OptimizerType::adam);
  EXPECT_EQ(line.arguments.steps.max_steps, 1000);
  EXPECT_EQ(line.arguments.data.seq_length, 8192);
  EXPECT_EQ(line.arguments.lr.warmup_steps, 200);
  EXPECT_EQ(line.arguments.job.tensor_model_parallel_size, 2);
  EXPECT_EQ(line.arguments.saving.strategy, IntervalStrategy::no);
  EXPECT_EQ(line.arguments.output.dir, "./outputs");
}

TEST_F(ForeignConfig, OneOfRollIsTaken) {
  const CommandLine line = read(R"(hydra:
  run:
    dir: .
exp_name: dpo
pretrain: models/qwen2.5
sequence_length: 512
chosen_key: chosen
rejected_key: rejected
beta: 0.2
actor_train:
  model_args: {disable_gradient_checkpointing: false, dtype: bf16, model_type: ~}
  training_args:
    learning_rate: 1.0e-6
    per_device_train_batch_size: 16
  data_args:
    file_name:
      - data/pairs.json
  strategy_args:
    strategy_name: megatron_train
    strategy_config:
      tensor_model_parallel_size: 2
      recompute_modules: "moe,layernorm"
      additional_configs: {moe_permute_fusion: true}
reference:
  strategy_args:
    strategy_config: {tensor_model_parallel_size: 1}
)");
  const TrainingArguments& a = line.arguments;
  EXPECT_EQ(a.model.path, "models/qwen2.5");
  EXPECT_EQ(a.data.path, "data/pairs.json");
  EXPECT_EQ(a.data.cutoff_len, 512);
  EXPECT_EQ(a.preference.stage, TrainingStage::dpo);
  EXPECT_EQ(a.preference.beta, 0.2);
  EXPECT_EQ(a.lr.learning_rate, 1e-6);
  EXPECT_EQ(a.job.tensor_model_parallel_size, 2);
  EXPECT_TRUE(a.precision.bf16);
  EXPECT_EQ(a.model_options.recompute.granularity, RecomputeGranularity::full);
  EXPECT_EQ(a.model_options.recompute.modules.size(), 2u);
  EXPECT_THAT(errors("lr_mult_pattern: {a: {b: 1}}\n"), ElementsAre(HasSubstr("has nested values")));
}

// Meshes are consecutive pipeline stages, each on one kind of device.
TEST_F(ForeignConfig, FlagScalesMeshesAreStagesAndPlatforms) {
  const CommandLine line = read(R"(
model: qwen
train_data: data.jsonl
enable_hetero: true
hetero_device_types: [H100, "910B"]
hetero_current_device_type: H100
hetero_process_meshes: [2, 1, 1, 4, 3, 2, 1, 1, 4, 1]
hetero_pipeline_layer_split: [10, 10, 10, 2]
hetero_use_cpu_communication: true
num_micro_batches_per_dp: [3, 12, 1, 4]
micro_batch_size_per_dp: [4, 2]
global_batch_size: 80
)");
  const TrainingArguments& a = line.arguments;
  EXPECT_EQ(a.job.platform, "cuda,cuda,cuda,ascend");
  EXPECT_EQ(a.job.tensor_model_parallel_size, 2);
  EXPECT_EQ(a.job.context_parallel_size, 1);
  EXPECT_EQ(a.job.expert_model_parallel_size, 1);
  EXPECT_EQ(a.job.pipeline_model_parallel_size, 4);
  EXPECT_EQ(a.pipeline.layout, "E,t*10|t*10|t*10|t*2,L");
  EXPECT_EQ(a.steps.heterogeneous_split, "12,12,12,4");
  EXPECT_EQ(a.data.micro_batch_size, 2);
  EXPECT_NO_THROW(check_arguments(a, 32)) << "80 rows are 40 micro-batches: 12, 12, 12 and 4";
  EXPECT_EQ(parse_command_line(std::vector<std::string>{"--hetero-pipeline-stages", "1", "6", "2", "3", "2"})
                .arguments.pipeline.layout,
            "E,t*6|t*3|t*2,L");
  EXPECT_EQ(
      parse_command_line(std::vector<std::string>{"--hetero-device-types", "A800", "A100"}).arguments.job.platform,
      "cuda");
}

TEST_F(ForeignConfig, WhatOnlyFlagScaleCanDoIsRefused) {
  const auto expect = [&](const std::string& text, const char* part) {
    EXPECT_THAT(errors(text), ElementsAre(HasSubstr(part))) << text;
  };
  expect("hetero_process_meshes: [2, 1, 1, 2, 1, 4, 1, 1, 2, 1]", "meshes of different tp sizes (2, 4)");
  expect("hetero_process_meshes: [2, 1, 1, 2, 1, 2, 1, 1, 4, 1]", "meshes of different dp sizes (2, 4)");
  expect("hetero_process_meshes: [2, 1, 1, 2]", "has 4 numbers; must be five for each mesh");
  expect("hetero_device_types: [H100, MLU590]", "has 'MLU590', whose platform is not known; give platform");
  expect("{hetero_process_meshes: [1, 1, 1, 1, 2], pipeline_model_parallel_size: 4}", "has 2 pipeline stages");
  expect("{hetero_pipeline_layer_split: [6, 2], pipeline_model_parallel_size: 3}", "has 2 pipeline stages");
  expect("hetero_pipeline_layer_split: [6, x]", "has 'x', but must be whole numbers >= 1");
  expect("hetero_pipeline_stages: [2, 4]", "has 2 stages, but only 1 numbers of layers after it");
  expect("micro_batch_size_per_dp: [1, 6, 1, 2]", "give num_micro_batches_per_dp, or heterogeneous_split");
  expect("num_micro_batches_per_dp: [1, 6, 1]", "must be pairs of numbers");
  expect("expert_tensor_parallel_size_per_process_mesh: [1, 2]", "must be the same size for all meshes");
  expect("recompute_granularity_per_stage_micro_batch: [1]", "which Concord does not support");
}

TEST_F(ForeignConfig, TheSameSectionsAreTakenFromYamlAndTheirNamesFromTheCommandLine) {
  EXPECT_EQ(read("training:\n  steps: 7\noptimizer:\n  lr: 1e-3\n").arguments.lr.learning_rate, 1e-3);
  const std::vector<std::string> words = {"--training.steps", "7", "--lr=2e-4", "--micro_batch_size", "3", "--packing"};
  const CommandLine line = parse_command_line(words);
  EXPECT_EQ(line.arguments.steps.max_steps, 7);
  EXPECT_EQ(line.arguments.lr.learning_rate, 2e-4);
  EXPECT_TRUE(line.arguments.data.packing);
  EXPECT_THAT(line.given, ElementsAre("max_steps", "learning_rate", "per_device_train_batch_size", "sequence_packing"));
}

TEST_F(ForeignConfig, NumbersOfTomlMayHaveUnderscores) {
  const TrainingArguments a = read("[training]\nsteps = 10_000\ndataset_path = \"a_1\"\n", ".toml").arguments;
  EXPECT_EQ(a.steps.max_steps, 10000);
  EXPECT_EQ(a.data.path, "a_1");
}

TEST_F(ForeignConfig, EightBitOptimizersSetTheTypesOfTheirState) {
  for (const char* name : {"adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "adamw_torch_8bit"}) {
    const OptimizerOptions a = read(fmt::format("optim: {}\n", name)).arguments.optimizer;
    EXPECT_EQ(a.optimizer, OptimizerType::adam) << name;
    EXPECT_EQ(a.precision, (StatePrecision{StateType::block8, StateType::block8})) << name;
    EXPECT_EQ(a.optimizer_cpu_offload, std::string_view(name).starts_with("paged")) << name;
  }
  const OptimizerOptions lion = read("optim: lion_8bit\nexp_avg_dtype: bf16\n").arguments.optimizer;
  EXPECT_EQ(lion.optimizer, OptimizerType::lion);
  EXPECT_EQ(lion.precision, (StatePrecision{.exp_avg_dtype = StateType::bf16})) << "its own name takes precedence";
  EXPECT_EQ(read("optim: adamw_torch\n").arguments.optimizer, OptimizerOptions{});
}

TEST_F(ForeignConfig, PagedAndSwappedStateIsUpdatedOnTheDevice) {
  for (const char* line : {"optim: paged_adamw\n", "optim: paged_adamw_32bit\n", "optim: paged_lion\n",
                           "optim: paged_lion_32bit\n", "swap_optimizer: true\nswap_optimizer_times: 16\n"}) {
    const OptimizerOptions a = read(line).arguments.optimizer;
    EXPECT_TRUE(a.optimizer_cpu_offload) << line;
    EXPECT_EQ(a.optimizer_offload_update, OffloadUpdate::device) << line;
    EXPECT_EQ(a.precision, StatePrecision{}) << line;
    EXPECT_EQ(a.optimizer == OptimizerType::lion, std::string_view(line).find("lion") != std::string_view::npos);
  }
  EXPECT_EQ(read("swap_optimizer: false\n").arguments.optimizer, OptimizerOptions{});
}

TEST_F(ForeignConfig, MegatronsRemaindersAreATypeOfMainWeights) {
  const auto main_type = [&](const std::string& text) {
    return read("use_precision_aware_optimizer: true\n" + text).arguments.optimizer.precision.main_params_dtype;
  };
  EXPECT_EQ(main_type("main_params_dtype: fp32\n"), MainParamsType::fp32);
  EXPECT_EQ(main_type("store_param_remainders: true\n"), MainParamsType::remainder);
  EXPECT_EQ(main_type("store_param_remainders: false\n"), MainParamsType::fp32);
}

TEST_F(ForeignConfig, AMistakeUnderAnotherNameIsToldUnderBoth) {
  EXPECT_THAT(errors("lr: fast\n"), ElementsAre(HasSubstr("lr (learning_rate) is 'fast', but must be a number >= 0")));
  EXPECT_THAT(errors("optim: adafactor\n"), ElementsAre(HasSubstr("must be one of: adam, lion, muon, sgd")));
  EXPECT_THAT(errors("lr: 1e-3\nlearning_rate: 1e-4\n"),
              ElementsAre(HasSubstr("'learning_rate' was already given as 'lr' in line 1")));
}

TEST_F(ForeignConfig, GlobalBatchSizeSaysHowManyMicroBatchesAStepHas) {
  const auto accumulation = [](int64_t global, int64_t given, int64_t world) {
    TrainingArguments a;
    a.model.path = a.data.path = "x";
    a.data.micro_batch_size = 2;
    a.job.tensor_model_parallel_size = 2;
    a.steps.global_batch_size = global;
    a.data.accumulation = given;
    check_arguments(a, world);
    a = resolve_arguments(a, world);
    return a.data.accumulation;
  };
  EXPECT_EQ(accumulation(32, 1, 8), 4);
  EXPECT_EQ(accumulation(32, 4, 8), 4);
  EXPECT_EQ(accumulation(32, 1, 0), 1) << "until it is known how many processes there are";
  EXPECT_THROW(accumulation(32, 2, 8), ConfigError);
  EXPECT_THROW(accumulation(30, 1, 8), ConfigError);
  EXPECT_THROW(accumulation(4, 1, 8), ConfigError);
}

TEST_F(ForeignConfig, TomlThatIsNotReadIsRefusedWithItsLine) {
  for (const std::string bad : {"x", "[a", "a = ", "a = [1", "a = \"b", "a = {b = 1}", "a = \"\"\"b", "= 1",
                                "a = \"b\" c", "a = \"\\q\"", "[]", "a = [1 2]", "a = \x1b[2J"}) {
    try {
      parse_toml("\n" + bad + "\n", "x.toml");
      ADD_FAILURE() << bad;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("x.toml:2: "));
    }
  }
}

TEST_F(ForeignConfig, DamagedTomlIsReadOrRefusedAndNothingElse) {
  std::mt19937 random(11);
  for (int i = 0; i < 500; ++i) {
    std::string text = kTorchtitan;
    for (size_t changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text[at] = static_cast<char>(random());
      } else {
        text.erase(at, random() % 40);
      }
    }
    TrainingArguments arguments;
    try {
      read_yaml(text, "x.toml", &arguments);
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("x.toml:"));
      EXPECT_THAT(error.what(), Not(HasSubstr("\x1b")));
    }
  }
}

TEST(ForeignArguments, EveryNameMeansOneThing) {
  std::set<std::string_view> names;
  for (const ForeignSetting& setting : foreign_settings()) {
    EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
    const Argument* argument = find_argument(setting.name);
    if (const auto* same = std::get_if<SameArgument>(&setting.meaning)) {
      ASSERT_NE(argument, nullptr) << setting.name;
      EXPECT_EQ(argument->name, same->argument);
    } else {
      EXPECT_EQ(argument, nullptr) << setting.name << " is an argument's own name";
    }
    EXPECT_EQ(find_foreign(setting.name), &setting)
        << setting.name << " is hidden by " << find_foreign(setting.name)->name;
  }
  for (const ValueAlias& alias : value_aliases()) {
    EXPECT_NE(find_argument(alias.argument), nullptr) << alias.argument;
  }
}

TEST(ForeignArguments, EveryNameThatTheProgramsDefineIsKnown) {
  std::ifstream file(CONCORD_DOCS "/../tests/published/names.json");  // make_names.py
  const nlohmann::json programs = nlohmann::json::parse(file);
  EXPECT_EQ(programs.size(), 5u);
  for (const auto& [program, names] : programs.items()) {
    for (const std::string name : names) {
      const bool is_off = name.starts_with("no_") && is_known_name(name.substr(3));
      EXPECT_TRUE(is_off || is_known_name(name)) << program << ": " << name;
    }
  }
}

TEST_F(ForeignConfig, WordsOfAListFollowEveryNameWithoutCounterpart) {
  const std::vector<std::string> words = {"--cuda-graph-scope", "attn", "mlp", "--window-size", "127,0",
                                          "--max_steps",        "3"};
  EXPECT_EQ(parse_command_line(words).arguments.steps.max_steps, 3);
  EXPECT_THROW(parse_command_line(std::vector<std::string>{"--load", "a", "b"}), ConfigError) << "one folder";
}

TEST(ForeignArguments, ThePageIsMadeFromTheTable) {
  const std::string path = CONCORD_DOCS "/foreign-settings.md";
  if (std::getenv("CONCORD_WRITE_DOCS") != nullptr) std::ofstream(path) << foreign_settings_page();
  std::ostringstream page;
  page << std::ifstream(path).rdbuf();
  EXPECT_EQ(page.str(), foreign_settings_page()) << "write it again as the page says";
}

}  // namespace
}  // namespace concord
