#include "trainer/cli/plans/plan_memory.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/base/config_error.h"

namespace concord {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kModel = CONCORD_GOLDEN "/hf/qwen2-tiny";

std::string output_of(const std::vector<std::string>& args) {
  try {
    return plan_memory_text(args);
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(PlanMemory, PrintsTheClassesOfARun) {
  const std::string text =
      plan_memory_text({"--model", kModel, "--bf16", "--seq_length", "32", "--per_device_train_batch_size", "2"});
  EXPECT_THAT(text, StartsWith("rank 0 of 1: Qwen2ForCausalLM, micro-batches of 2 x 32 tokens\n"));
  EXPECT_THAT(text, HasSubstr("main weights          fp32  device"));
  EXPECT_THAT(text, HasSubstr("predicted peak of the device: "));
}

// Names of other programs are those of train; a rank of the last stage has the logits.
TEST(PlanMemory, TakesTheArgumentsOfTrain) {
  const std::vector<std::string> args = {
      "--json",  "--model", kModel,         "--optim", "adamw_8bit", "--pipeline_model_parallel_size=2",
      "--nproc", "2",       "--seq_length", "32"};
  const auto document = nlohmann::json::parse(plan_memory_text(args));
  const auto classes = [](const nlohmann::json& plan) {
    std::vector<std::string> names;
    for (const auto& each : plan["tensors"]) names.push_back(each["class"]);
    return names;
  };
  EXPECT_THAT(classes(document), testing::Contains("first moments"));
  std::vector<std::string> first = args;
  first.insert(first.end(), {"--rank", "0"});
  EXPECT_THAT(classes(nlohmann::json::parse(plan_memory_text(first))), testing::Not(testing::Contains("logits")));
  EXPECT_GT(document["device"]["peak"], document["device"]["least"]);
}

TEST(PlanMemory, ListsTheChangesForDeviceSizes) {
  const std::string text = plan_memory_text(
      {"--fits", "1.0001,1.01, 40", "--model", kModel, "--seq_length", "64", "--per_device_train_batch_size", "2"});
  EXPECT_THAT(text, HasSubstr("  1.0001                      does not fit\n"));
  EXPECT_THAT(text, HasSubstr("1.01      0.01      0.00  none\n"));
  EXPECT_THAT(text, HasSubstr("      40 "));
  EXPECT_THAT(output_of({"--fits", "24,x", "--model", kModel}), HasSubstr("--fits has 'x'; must be a number of GiB"));
}

TEST(PlanMemory, RefusesWhatItCannotPlan) {
  EXPECT_THAT(output_of({}), HasSubstr("give --model FOLDER or --model_config FILE"));
  EXPECT_THAT(output_of({"--model", kModel, "--rank"}), HasSubstr("--rank needs a value"));
  EXPECT_THAT(output_of({"--model", kModel, "--rank", "1"}),
              HasSubstr("--rank is '1'; must be an integer from 0 to 0"));
  EXPECT_THAT(output_of({"--model", kModel, "--sequence_lenth", "3"}), HasSubstr("unknown argument 'sequence_lenth'"));
  EXPECT_THAT(output_of({"--help"}), HasSubstr("concord plan memory"));
}

}  // namespace
}  // namespace concord
