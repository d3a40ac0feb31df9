// The example configurations must be accepted unchanged, for the number of devices in their names.
#include <gmock/gmock.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "core/models/config.h"
#include "core/models/parameter_plan.h"
#include "core/optim/lr_schedule.h"
#include "core/schedule/layer_layout.h"
#include "trainer/arguments/arguments.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kExamples = CONCORD_EXAMPLES;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns every N-device.yaml and N-devices.yaml, with its N.
std::map<fs::path, int64_t> configurations() {
  std::map<fs::path, int64_t> found;
  for (const auto& entry : fs::recursive_directory_iterator(kExamples)) {
    const std::string name = entry.path().filename();
    if (name.ends_with("-device.yaml") || name.ends_with("-devices.yaml")) found[entry.path()] = std::stoll(name);
  }
  return found;
}

TrainingArguments arguments_in(const fs::path& path, int64_t world) {
  TrainingArguments arguments;
  read_yaml(text_of(path), path, &arguments);
  check_arguments(arguments, world);
  return resolve_arguments(arguments, world);
}

int64_t samples_of_a_step(const TrainingArguments& arguments, int64_t world) {
  return arguments.data.micro_batch_size * arguments.data.accumulation * layout_of(arguments.job, world).dp();
}

TEST(Examples, EveryConfigurationFitsItsNumberOfDevicesAndPrintsBackTheSame) {
  for (const auto& [path, world] : configurations()) {
    SCOPED_TRACE(path);
    const TrainingArguments arguments = arguments_in(path, world);
    TrainingArguments again;
    read_yaml(to_yaml(arguments), "printed", &again);
    EXPECT_EQ(again, arguments);
    const fs::path inside = fs::relative(path, kExamples.parent_path());
    EXPECT_THAT(text_of(path), HasSubstr(inside.string())) << "its first lines start another file";
  }
}

TEST(Examples, ThereIsOneForEveryModelAndSize) {
  std::map<std::string, std::set<int64_t>> sizes;
  for (const auto& [path, world] : configurations()) sizes[path.parent_path().filename()].insert(world);
  const std::set<int64_t> all = {1, 8, 16};
  EXPECT_EQ(sizes, (std::map<std::string, std::set<int64_t>>{{"qwen2.5-0.5b", all},
                                                             {"qwen2.5-7b", all},
                                                             {"llama-3.1-8b", all},
                                                             {"qwen3-30b-a3b", {16}},
                                                             {"deepseek-v3", {512}}}));
}

TEST(Examples, AModelTrainsOnTheSameTokensAStepHoweverItIsSplit) {
  std::map<std::string, std::set<int64_t>> tokens;
  for (const auto& [path, world] : configurations()) {
    const TrainingArguments arguments = arguments_in(path, world);
    const int64_t samples = samples_of_a_step(arguments, world);
    tokens[path.parent_path().filename()].insert(samples * arguments.data.seq_length);
    EXPECT_THAT(text_of(path), HasSubstr(std::to_string(samples) + " samples")) << path << " says another number";
  }
  for (const auto& [model, counts] : tokens) {
    EXPECT_EQ(counts, std::set<int64_t>{model == "deepseek-v3" ? 7'864'320 : 524'288}) << model;
  }
}

// Returns the bytes of a rank of |stage|: 6 for each parameter and its gradient, 12 for the optimizer state, sharded
// over the replicas of the parameter.
double bytes_of(const ModelConfig& config, const StageLayers& stage, const RankLayout& layout) {
  double bytes = 0;
  for (const ParameterPlan& plan :
       plan_parameters(config, stage, {.tp = layout.tp(), .ep = layout.ep(), .etp = layout.etp()})) {
    double elements = 1;
    for (const int64_t size : local_shape(plan.spec, shard_place(layout, 0))) elements *= static_cast<double>(size);
    bytes += elements * (6 + 12 / static_cast<double>(plan.expert ? layout.edp() : layout.dp()));
  }
  return bytes;
}

TEST(Examples, DeepseekV3FitsItsDevices) {
  const fs::path folder = kExamples / "deepseek-v3";
  const ModelConfig config = read_model_config(folder);
  EXPECT_EQ(parameter_count(config), 671'026'404'352);  // as transformers counts
  const TrainingArguments arguments = arguments_in(folder / "512-devices.yaml", 512);
  const RankLayout layout = layout_of(arguments.job, 512);
  const auto stages = parse_layer_layout(arguments.pipeline.layout, config.num_hidden_layers, layout.pp());
  ASSERT_EQ(stages.size(), 16u);
  double most = 0;
  for (const StageLayers& stage : stages) most = std::max(most, bytes_of(config, stage, layout));
  EXPECT_NEAR(most / 1e9, 31, 0.5) << "its first lines say another number";
}

TEST(Examples, Qwen3WithExpertsFitsItsDevices) {
  const fs::path folder = kExamples / "qwen3-30b-a3b";
  const ModelConfig config = read_model_config(folder);
  EXPECT_EQ(parameter_count(config), 30'532'122'624);  // as transformers counts
  const TrainingArguments arguments = arguments_in(folder / "16-devices.yaml", 16);
  const RankLayout layout = layout_of(arguments.job, 16);
  const auto stages = assign_layers({.num_layers = config.num_hidden_layers});
  ASSERT_EQ(stages.size(), 1u);
  EXPECT_NEAR(bytes_of(config, stages[0], layout) / 1e9, 54, 0.5) << "its first lines say another number";
}

TEST(Examples, TheirLearningRatesAreACurve) {
  for (const auto& [path, world] : configurations()) {
    const TrainingArguments given = arguments_in(path, world);
    LrArguments lr = given.lr;
    lr.max_steps = given.steps.max_steps;
    const LrSchedule schedule(lr);
    EXPECT_EQ(schedule.settings().warmup, 40) << path;
    EXPECT_NEAR(lr_at(schedule.settings(), lr.max_steps), lr.learning_rate / 10, 1e-18) << path;
  }
}

TEST(Examples, TheKubernetesJobNamesAConfigurationOfItsSize) {
  const std::vector<YAML::Node> documents = YAML::LoadAllFromFile(kExamples / "kubernetes/train.yaml");
  ASSERT_EQ(documents.size(), 2u);
  const YAML::Node job = documents[1]["spec"];
  const YAML::Node container = job["template"]["spec"]["containers"][0];
  std::map<std::string, std::string> given;
  for (const YAML::Node& argument : container["args"]) {
    const auto text = argument.as<std::string>();
    given[text.substr(0, text.find('='))] = text.substr(std::min(text.find('=') + 1, text.size()));
  }
  EXPECT_EQ(given.at("--nnodes"), job["completions"].as<std::string>());
  EXPECT_EQ(given.at("--nnodes"), job["parallelism"].as<std::string>());
  EXPECT_EQ(given.at("--nproc"), container["resources"]["limits"]["nvidia.com/gpu"].as<std::string>());
  const std::string service = documents[0]["metadata"]["name"].as<std::string>();
  EXPECT_EQ(given.at("--master_addr"), documents[1]["metadata"]["name"].as<std::string>() + "-0." + service);
  EXPECT_EQ(job["template"]["spec"]["subdomain"].as<std::string>(), service);
  const fs::path config = kExamples.parent_path() / given.at("--config");
  EXPECT_EQ(configurations().at(config), std::stoll(given.at("--nnodes")) * std::stoll(given.at("--nproc")));
}

// srun is a stand-in that prints its arguments.
TEST(Examples, TheSlurmJobStartsWhatItIsGiven) {
  const std::string script = (kExamples / "slurm/train.sbatch").string();
  const std::string printed = testing::TempDir() + "concord_sbatch.txt";
  const std::string stand_in = testing::TempDir() + "concord_sbatch_path";
  fs::create_directories(stand_in);
  std::ofstream(stand_in + "/srun") << "#!/bin/sh\necho srun \"$@\"\n";
  fs::permissions(stand_in + "/srun", fs::perms::owner_all);
  const std::string command = "PATH='" + stand_in + "':$PATH SLURM_JOB_ID=7 bash '" + script + "' ";
  ASSERT_EQ(std::system((command + "some.yaml --max_steps 3 > '" + printed + "'").c_str()), 0);
  EXPECT_EQ(text_of(printed),
            "srun --kill-on-bad-exit=1 --label build/bin/concord train --config some.yaml --output_dir out/job-7 "
            "--resume_from_checkpoint true --max_steps 3\n");
  EXPECT_NE(std::system((command + "2> /dev/null").c_str()), 0) << "without a configuration";
}

}  // namespace
}  // namespace concord
