// Configurations of other programs, as people paste them: what can be taken is, the rest is named with what to write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <set>

#include "core/base/config_error.h"
#include "tests/temporary_folder.h"
#include "trainer/arguments/arguments.h"
#include "trainer/arguments/foreign_samples_test.h"
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

// The names that the errors are about, each of which says what to do.
std::set<std::string> refused_names(const std::vector<std::string>& errors) {
  std::set<std::string> names;
  for (const std::string& error : errors) {
    EXPECT_THAT(error, Not(HasSubstr("unknown argument")));
    const size_t is = error.find(" is ");
    if (is == std::string::npos) continue;  // "3 errors in the arguments:"
    EXPECT_THAT(error, HasSubstr("which Concord does not support: ")) << "what to do instead";
    const size_t begin = error.rfind(' ', is - 1) + 1;
    names.insert(error.substr(begin, is - begin));
  }
  return names;
}

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

TEST_F(ForeignConfig, OneOfLlamaFactoryIsTakenButForWhatIsNamed) {
  const std::set<std::string> refused = refused_names(errors(kLlamaFactory));
  EXPECT_EQ(refused, (std::set<std::string>{"deepspeed", "val_size"}));
  const TrainingArguments a = read(without(kLlamaFactory, refused)).arguments;
  EXPECT_EQ(a.model.path, "models/llama3-8b");
  EXPECT_EQ(a.data.cutoff_len, 2048);
  EXPECT_EQ(a.dataset.name, "identity,alpaca_en_demo");
  EXPECT_EQ(a.data.chat_template, "") << "the model's own";
  EXPECT_EQ(a.job.ddp_timeout, 180000000);
}

TEST_F(ForeignConfig, OneOfMegatronIsTakenButForWhatIsNamed) {
  const std::set<std::string> refused = refused_names(errors(kMegatron));
  EXPECT_EQ(refused, (std::set<std::string>{"num_layers", "hidden_size", "num_attention_heads", "normalization",
                                            "distributed_timeout_minutes"}));
  TrainingArguments a = read(without(kMegatron, refused) + "model_config: config.json\n").arguments;
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

TEST_F(ForeignConfig, OneOfTorchtitanIsTakenButForWhatIsNamed) {
  const std::set<std::string> refused = refused_names(errors(kTorchtitan, ".toml"));
  EXPECT_EQ(refused, (std::set<std::string>{"model.name", "model.flavor", "training.dataset", "checkpoint.enable",
                                            "activation_checkpoint.mode"}));
  std::string rest = without(kTorchtitan, {"flavor", "dataset", "mode"});
  rest.replace(rest.find("name = \"llama3\"\n"), 16, "");
  rest.replace(rest.find("[checkpoint]\nenable = false\n"), 28, "[checkpoint]\n");
  const CommandLine line = read(rest, ".toml");
  EXPECT_EQ(line.arguments.lr.learning_rate, 3e-4);
  EXPECT_EQ(line.arguments.optimizer.optimizer, OptimizerType::adam);
  EXPECT_EQ(line.arguments.steps.max_steps, 1000);
  EXPECT_EQ(line.arguments.data.seq_length, 8192);
  EXPECT_EQ(line.arguments.lr.warmup_steps, 200);
  EXPECT_EQ(line.arguments.job.tensor_model_parallel_size, 2);
  EXPECT_EQ(line.arguments.saving.steps, 500);
  EXPECT_EQ(line.arguments.output.dir, "./outputs");
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
  for (const ArgumentAlias& alias : argument_aliases()) {
    EXPECT_TRUE(names.insert(alias.name).second) << alias.name;
    ASSERT_NE(find_argument(alias.name), nullptr) << alias.name;
    EXPECT_EQ(find_argument(alias.name)->name, alias.argument);
  }
  for (const IgnoredArguments& group : ignored_arguments()) {
    for (const std::string_view name : group.names) EXPECT_TRUE(names.insert(name).second) << name;
  }
  for (const RefusedArgument& refused : refused_arguments())
    EXPECT_TRUE(names.insert(refused.name).second) << refused.name;
  for (const std::string_view name : names) {
    const Argument* argument = find_argument(name);
    EXPECT_TRUE(argument == nullptr || argument->name != name) << name << " is an argument's own name";
  }
}

}  // namespace
}  // namespace concord
