// Folders written by jobs of real processes: the same bytes from every layout, all or nothing.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "core/config_error.h"
#include "core/models/hf_weights.h"
#include "core/models/testing/sample_parameters.h"
#include "core/safetensors/index.h"
#include "tests/processes/group_job.h"

namespace concord::tests {
namespace {

namespace fs = std::filesystem;
using concord::testing::SampleParameters;
using concord::testing::stage_specs;
using safetensors::testing::read_file;
using safetensors::testing::words_of;
using safetensors::testing::write_file;
using ::testing::HasSubstr;

SampleParameters parameters_of(const ParallelContext& job, at::ScalarType type = at::kFloat) {
  return {stage_specs(job.coordinates().pp, job.layout().pp()), shard_place(job.layout(), job.rank()), type};
}

// Name -> bytes of all files.
std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files[entry.path().filename()] = read_file(entry.path());
  return files;
}

// A job loads |from| and saves |to|.
void pass_on(int world, const InitializeArgs& args, const std::string& from, const std::string& to,
             const HfSaveOptions& options, at::ScalarType type = at::kFloat) {
  expect_job(world, args, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job, type);
    load_hf_weights(from, sample.list, shard_place(job.layout(), job.rank()));
    save_hf_weights(to, sample.list, job, options);
    EXPECT_TRUE(fs::exists(to)) << "it is there when the call returns";
  });
}

TEST(HfWeightsSave, GivesTheSameBytesFromEveryLayout) {
  const TemporaryFolder folder;
  const std::string first = folder.path() + "/first";
  fs::create_directory(first);
  concord::testing::write_sample(first + "/model.safetensors", stage_specs(0, 1));
  const HfSaveOptions options{.max_shard_bytes = 20'000, .config_json = "{}\n"};
  const struct {
    int world;
    InitializeArgs args;
  } jobs[] = {{1, {}},
              {2, {.tensor_model_parallel_size = 2}},
              {2, {}},  // two replicas
              {2, {.pipeline_model_parallel_size = 2}},
              {4, {.tensor_model_parallel_size = 4}},
              {4, {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2}},
              {4, {.context_parallel_size = 2, .expert_model_parallel_size = 4}}};
  std::map<std::string, std::string> expected;
  std::string from = first;
  for (size_t i = 0; i < std::size(jobs); ++i) {
    const std::string to = folder.path() + "/" + std::to_string(i);
    pass_on(jobs[i].world, jobs[i].args, from, to, options);
    if (i == 0) {
      expected = files_of(to);
      EXPECT_GT(expected.size(), 4u) << "several files, index, config";
    } else {
      EXPECT_TRUE(files_of(to) == expected) << i;
    }
    from = to;
  }
  const safetensors::Weights before(first), after(from);
  ASSERT_EQ(before.tensors().size(), after.tensors().size());
  for (const auto& [name, tensor] : before.tensors()) {
    const safetensors::Weights::Tensor* other = after.find(name);
    ASSERT_NE(other, nullptr) << name;
    EXPECT_EQ(other->info->shape, tensor.info->shape);
    EXPECT_TRUE(std::ranges::equal(other->file->data(*other->info), tensor.file->data(*tensor.info))) << name;
  }
}

TEST(HfWeightsSave, WritesTheTypeOfTheParameters) {
  const TemporaryFolder folder;
  concord::testing::write_sample(folder.path() + "/model.safetensors", stage_specs(0, 1));
  pass_on(2, {.tensor_model_parallel_size = 2}, folder.path(), folder.path() + "/half", {}, at::kBFloat16);
  const safetensors::Weights weights(folder.path() + "/half");
  EXPECT_EQ(weights.files().size(), 1u);
  for (const auto& [name, tensor] : weights.tensors()) EXPECT_EQ(tensor.info->dtype, safetensors::DType::kBF16);
  EXPECT_EQ(weights.find("model.embed_tokens.weight")->info->shape, (std::vector<int64_t>{50, 24})) << "no padding";
}

TEST(HfWeightsSave, CarriesTokenizerAndConfigsOver) {
  const TemporaryFolder folder;
  const std::string source = folder.path() + "/source";
  fs::create_directory(source);
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "merges.txt", "model.safetensors", "README.md", "pytorch_model.bin"})
    write_file(source + "/" + name, name);
  write_file(source + "/tokenizer.model", std::string(3'000'000, 'x'));
  chmod((source + "/tokenizer.json").c_str(), 0400);
  expect_job(1, {}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job);
    save_hf_weights(folder.path() + "/a", sample.list, job, {.source = source});
    save_hf_weights(folder.path() + "/b/", sample.list, job, {.config_json = "mine", .source = source});
  });
  const auto files = files_of(folder.path() + "/a");
  std::vector<std::string> names;
  for (const auto& [name, bytes] : files) names.push_back(name);
  EXPECT_THAT(names, ::testing::ElementsAre("config.json", "generation_config.json", "merges.txt", "model.safetensors",
                                            "tokenizer.json", "tokenizer.model", "tokenizer_config.json"));
  EXPECT_EQ(files.at("tokenizer.json"), "tokenizer.json");
  EXPECT_EQ(files.at("tokenizer.model"), std::string(3'000'000, 'x'));
  EXPECT_EQ(files.at("config.json"), "config.json");
  EXPECT_EQ(read_file(folder.path() + "/b/config.json"), "mine");
}

TEST(HfWeightsSave, ReplacesAFolderOnlyWhereItIsAsked) {
  const TemporaryFolder folder;
  const std::string target = folder.path() + "/model";
  fs::create_directory(target);  // an empty one may be filled
  expect_job(2, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job);
    save_hf_weights(target, sample.list, job, {.config_json = "old"});
    const std::string words =
        words_of<ConfigError>([&] { save_hf_weights(target, sample.list, job, {.config_json = "new"}); });
    EXPECT_THAT(words, HasSubstr(target + ": exists already")) << "on all ranks";
    EXPECT_EQ(read_file(target + "/config.json"), "old");
  });
  write_file(target + "/leftover", "x");
  expect_job(2, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job);
    save_hf_weights(target, sample.list, job, {.config_json = "new", .overwrite = true});
  });
  EXPECT_EQ(read_file(target + "/config.json"), "new");
  EXPECT_FALSE(fs::exists(target + "/leftover"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1) << "no temporary folder is left";
}

TEST(HfWeightsSave, LeavesNothingWhereOneRankFails) {
  const TemporaryFolder folder;
  const std::string target = folder.path() + "/model";
  fs::create_directory(target);
  write_file(target + "/config.json", "old");
  expect_job(2, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    if (job.rank() == 1) fs::current_path("/");  // a relative folder: rank 1 does not see what rank 0 makes
    if (job.rank() == 0) fs::current_path(folder.path());
    const SampleParameters sample = parameters_of(job);
    const std::string words =
        words_of<ConfigError>([&] { save_hf_weights("model", sample.list, job, {.overwrite = true}); });
    EXPECT_THAT(words, HasSubstr("was made by rank 0 and cannot be seen here"));
    EXPECT_THAT(words, HasSubstr("(rank 1)"));
  });
  EXPECT_EQ(read_file(target + "/config.json"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(HfWeightsSave, NamesATensorThatTwoRanksHaveInDifferentTypes) {
  const TemporaryFolder folder;
  expect_job(2, {.pipeline_model_parallel_size = 2}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job, job.rank() == 0 ? at::kFloat : at::kBFloat16);
    const std::string words = words_of<ConfigError>([&] { save_hf_weights(folder.path() + "/m", sample.list, job); });
    EXPECT_THAT(words, HasSubstr("tensor model.embed_tokens.weight is [50, 24] in"));
  });
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace concord::tests
