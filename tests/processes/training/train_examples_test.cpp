// Every configuration in examples/ through the program: accepted unchanged for its number of devices, and trained for
// two steps with its layout, with a model that has the real one's layers and heads but is narrow.
#include <gmock/gmock.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <sstream>

#include "tests/processes/train_program.h"
#include "trainer/arguments/arguments.h"

namespace concord::testing_processes {
namespace {

namespace fs = std::filesystem;

struct Example {
  std::string file;  // below examples/
  int64_t devices;
};

std::ostream& operator<<(std::ostream& out, const Example& example) { return out << example.file; }

std::vector<Example> examples() {
  std::vector<Example> found;
  for (const auto& entry : fs::recursive_directory_iterator(CONCORD_EXAMPLES)) {
    const std::string name = entry.path().filename();
    if (!name.ends_with("-device.yaml") && !name.ends_with("-devices.yaml")) continue;
    const int64_t devices = std::stoll(name);
    if (devices > 16) continue;  // more processes than a machine has cores for; examples_test plans its layout
    found.push_back({fs::relative(entry.path(), CONCORD_EXAMPLES), devices});
  }
  return found;
}

// The sizes that determine how a model can be sharded, as in the published config.json. A head is 8 wide.
std::string narrow_model(const std::string& file, int64_t vocab_size) {
  const auto config = [&](const char* architecture, const char* type, int64_t layers, int64_t heads, int64_t groups,
                          bool tied) {
    return nlohmann::json{{"architectures", {architecture}},
                          {"model_type", type},
                          {"vocab_size", vocab_size},
                          {"hidden_size", 8 * heads},
                          {"intermediate_size", 64},
                          {"num_hidden_layers", layers},
                          {"num_attention_heads", heads},
                          {"num_key_value_heads", groups},
                          {"max_position_embeddings", 128},
                          {"rms_norm_eps", 1e-6},
                          {"rope_theta", 1e4},
                          {"hidden_act", "silu"},
                          {"initializer_range", 0.02},
                          {"tie_word_embeddings", tied}}
        .dump();
  };
  if (file.starts_with("qwen2.5-0.5b")) return config("Qwen2ForCausalLM", "qwen2", 24, 14, 2, true);
  if (file.starts_with("qwen2.5-7b")) return config("Qwen2ForCausalLM", "qwen2", 28, 28, 4, false);
  if (file.starts_with("llama-3.1-8b")) return config("LlamaForCausalLM", "llama", 32, 32, 8, false);
  if (file.starts_with("qwen3-30b-a3b")) {
    auto narrow = nlohmann::json::parse(config("Qwen3MoeForCausalLM", "qwen3_moe", 48, 32, 4, false));
    narrow.update({{"num_experts", 128}, {"num_experts_per_tok", 8}, {"moe_intermediate_size", 8}, {"head_dim", 8}});
    return narrow.dump();
  }
  ADD_FAILURE() << "the layers and heads of " << file << " are not known here";
  return "";
}

class TrainExamples : public ::testing::TestWithParam<Example> {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string file() const { return (fs::path(CONCORD_EXAMPLES) / GetParam().file).string(); }
  TrainingArguments arguments() const {
    std::ostringstream text;
    text << std::ifstream(file()).rdbuf();
    TrainingArguments given;
    read_yaml(text.str(), file(), &given);
    return given;
  }

  TemporaryFolder folder_;
};

TEST_P(TrainExamples, IsTakenForItsNumberOfDevicesAndPrintedBack) {
  TrainProgram taken({"--config", file(), "--nproc", std::to_string(GetParam().devices), "--print_config"});
  ASSERT_EQ(taken.exit_code(), 0) << taken.err();
  TrainingArguments printed;
  read_yaml(taken.out(), "printed", &printed);
  EXPECT_EQ(printed.model.path, arguments().model.path);
  TrainProgram odd({"--config", file(), "--nproc", "3", "--print_config"});
  const auto& job = arguments().job;
  const bool is_cut = job.tensor_model_parallel_size > 1 || job.expert_model_parallel_size > 1;
  EXPECT_EQ(odd.exit_code(), is_cut ? 2 : 0) << "3 devices cannot be pairs";
}

// In fp32: libtorch multiplies bf16 a hundred times slower on a processor without support.
TEST_P(TrainExamples, TrainsTwoStepsAsItIsSplit) {
  const TrainingArguments given = arguments();
  RunningProcess synth({LAUNCH_PROGRAM, "data", "synth", "--output", path("corpus"), "--tokens", "20000", "--json"});
  ASSERT_EQ(synth.wait(), 0) << synth.err();
  const auto vocab_size = nlohmann::json::parse(synth.out()).at("vocab_size").get<int64_t>();
  std::ofstream(path("config.json")) << narrow_model(GetParam().file, vocab_size);
  const int64_t parts =
      given.job.tensor_model_parallel_size * given.job.context_parallel_size * given.job.pipeline_model_parallel_size;
  const int64_t copies = std::min(GetParam().devices, parts > 2 ? parts : 2 * parts);  // fewer copies of the whole
  const int64_t world = std::max(copies, given.job.expert_model_parallel_size);
  TrainProgram program({"--config",
                        file(),
                        "--model",
                        "",
                        "--model_config",
                        path("config.json"),
                        "--train_data",
                        path("corpus"),
                        "--seq_length",
                        "32",
                        "--bf16",
                        "false",
                        "--gradient_accumulation_steps",
                        "2",
                        "--max_steps",
                        "2",
                        "--logging_steps",
                        "1",
                        "--nproc",
                        std::to_string(world),
                        "--output_dir",
                        path("out")});
  ASSERT_EQ(program.exit_code(), 0) << program.err();
  const auto steps = read_steps(path("out"));
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_NEAR(steps[0]["loss"].get<double>(), std::log(static_cast<double>(vocab_size)), 0.3)
      << "nothing is learnt yet";
  EXPECT_TRUE(std::isfinite(steps[1]["loss"].get<double>()));
  EXPECT_TRUE(fs::exists(path("out/model/model.safetensors")));
}

INSTANTIATE_TEST_SUITE_P(Examples, TrainExamples, ::testing::ValuesIn(examples()), [](const auto& example) {
  std::string name = example.param.file;
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

TEST(TrainExamplesList, IsNotEmpty) { EXPECT_EQ(examples().size(), 10u); }

}  // namespace
}  // namespace concord::testing_processes
