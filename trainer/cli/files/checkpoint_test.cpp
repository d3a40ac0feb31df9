// `concord checkpoint verify|diff|describe` through the program, on checkpoints made here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/checkpoint/testing/manifest_of.h"
#include "core/safetensors/writer.h"
#include "tests/processes/running_process.h"
#include "trainer/checkpoint/training_state.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using safetensors::testing::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_processes::RunningProcess;

using Tensors = std::vector<std::pair<std::string, std::vector<float>>>;

void write_tensors(const std::string& path, const Tensors& tensors) {
  std::vector<safetensors::TensorShape> shapes;
  for (const auto& [name, values] : tensors) {
    shapes.push_back({name, safetensors::DType::kF32, {static_cast<int64_t>(values.size())}});
  }
  safetensors::Writer writer(path, shapes);
  for (const auto& [name, values] : tensors) writer.write(name, 0, std::as_bytes(std::span(values)));
  writer.finish();
}

TrainingState small_state() {
  TrainingState state;
  state.step = 10;
  state.optimizer = "adamw";
  state.lr_counter = 10;
  state.data = {.epoch = 1, .sample = 32, .fingerprint = 7};
  state.loss_scaler = LossScalerState{.scale = 1024};
  state.layout.order = "tp-cp-ep-dp-pp";
  state.layout.platform = "cpu";
  state.rng = {{{"default", {1, 2, 3}}}};
  return state;
}

struct Contents {
  Tensors weights = {{"a", {1, 2, 3}}, {"b", {4, 5}}};
  Tensors optimizer = {{"exp_avg.a", {0.5F, 0.25F, 0}}};
  TrainingState state = small_state();
};

class CheckpointCommand : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }

  std::string make(const std::string& name, const Contents& contents = {}) const {
    const std::string folder = path(name);
    fs::create_directories(folder);
    write_tensors(folder + "/model.safetensors", contents.weights);
    if (!contents.optimizer.empty()) write_tensors(folder + "/optimizer.safetensors", contents.optimizer);
    write_file(folder + "/metadata.json", to_json(contents.state));
    write_file(folder + "/config.json", "{}");
    testing::write_manifest(folder);
    return folder;
  }

  struct Ended {
    int code;
    std::string out, err;
  };
  static Ended run(std::vector<std::string> words) {
    words.insert(words.begin(), {CONCORD_PROGRAM, "checkpoint"});
    RunningProcess process(words);
    const int status = process.wait();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, process.out(), process.err()};
  }

  tests::TemporaryFolder folder_;
};

TEST_F(CheckpointCommand, VerifyEndsWith0WhereAllIsIntact) {
  const Ended ended = run({"verify", make("out/checkpoint-10") + "/"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("checkpoint-10: intact: 4 files, 3 tensors, "));
  EXPECT_EQ(ended.err, "") << "no progress where nobody watches";
}

TEST_F(CheckpointCommand, VerifyNamesWhatIsDamaged) {
  const std::string folder = make("out/checkpoint-10");
  const uint64_t size = fs::file_size(folder + "/model.safetensors");
  std::fstream(folder + "/model.safetensors", std::ios::in | std::ios::out).seekp(static_cast<int64_t>(size) - 1)
      << '!';
  fs::remove(folder + "/config.json");
  write_file(folder + "/notes.txt", "mine");
  const Ended ended = run({"verify", folder});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("checkpoint-10: damaged\n"), HasSubstr("config.json: is missing"),
                               HasSubstr("model.safetensors: tensor 'b' has the checksum "),
                               HasSubstr("note: notes.txt has no checksum"), Not(HasSubstr("'a'"))));
  const json answer = json::parse(run({"verify", folder, "--json"}).out);
  EXPECT_EQ(answer["intact"], false);
  const json& one = answer["checkpoints"].at(0);
  EXPECT_EQ(one["damage"].size(), 2U);
  EXPECT_EQ(one["damage"][0]["kind"], "missing");
  EXPECT_EQ(one["damage"][1]["tensor"], "b");
  EXPECT_EQ(one["damage"][1]["expected"], checksum_text(read_manifest(folder).files["model.safetensors"].tensors["b"]));
  EXPECT_EQ(one["extra_files"], json::array({"notes.txt"}));
}

TEST_F(CheckpointCommand, VerifyOfAnOutputFolderLooksAtEachCheckpoint) {
  make("out/checkpoint-2");
  const std::string later = make("out/checkpoint-10");
  EXPECT_EQ(run({"verify", path("out")}).code, 0);
  fs::remove(later + "/manifest.json");
  const Ended without = run({"verify", path("out")});
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.out, AllOf(HasSubstr("checkpoint-2: intact"), HasSubstr("checkpoint-10: has no manifest.json")));
  fs::remove(path("out/checkpoint-2/optimizer.safetensors"));
  EXPECT_EQ(run({"verify", path("out")}).code, 1) << "damage goes first";
}

TEST_F(CheckpointCommand, VerifyEndsWith2WhereThereIsNothingToVerify) {
  fs::create_directory(path("empty"));
  for (const std::string& folder : {path("empty"), path("nowhere")}) {
    const Ended ended = run({"verify", folder});
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.err, HasSubstr("is not a checkpoint with checksums (manifest.json) and contains none"));
  }
  fs::create_directory(path("checkpoint-3"));
  const Ended ended = run({"verify", path("checkpoint-3")});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.out, HasSubstr("there are no checksums"));
}

TEST_F(CheckpointCommand, DescribeSeesWhatIsMissingOrCutOffBySizes) {
  const std::string folder = make("out/checkpoint-10");
  const Ended whole = run({"describe", folder});
  EXPECT_EQ(whole.code, 0);
  EXPECT_THAT(whole.out, AllOf(HasSubstr("parameters  5\n"), HasSubstr("checksums   there"),
                               HasSubstr("step        10\n"), HasSubstr("platform \"cpu\"")));
  fs::remove(folder + "/config.json");
  fs::resize_file(folder + "/model.safetensors", 20);
  const Ended damaged = run({"describe", folder});
  EXPECT_EQ(damaged.code, 0) << damaged.err;
  EXPECT_THAT(damaged.out, AllOf(HasSubstr("damaged     config.json: is missing\n"), HasSubstr("parameters  unknown\n"),
                                 HasSubstr("damaged     model.safetensors: has 20 bytes")));
  const json answer = json::parse(run({"describe", folder, "--json"}).out);
  EXPECT_EQ(answer["complete"], false);
  EXPECT_EQ(answer["damage"].size(), 2U);
  EXPECT_EQ(answer["layout"]["world"], 1);
}

TEST_F(CheckpointCommand, DiffOfEqualCheckpointsEndsWith0WhateverTheirLayout) {
  Contents other;
  other.state.layout.world = other.state.layout.tp = 2;
  other.state.rng = {{{"default", {1, 2, 3}}}, {{"default", {9, 9, 9}}}};
  other.state.arguments = {{"tensor_model_parallel_size", "2"}};
  other.state.window.seconds = 12;
  const Ended ended = run({"diff", make("a"), make("b", other)});
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("metadata  identical"), HasSubstr("2 tensors: 2 identical"),
                               HasSubstr("1 tensors: 1 identical")));
}

TEST_F(CheckpointCommand, DiffNamesMetadataWeightsAndOptimizerState) {
  const std::string a = make("a");
  Contents other;
  other.state.step = 12;
  other.state.data.sample = 40;
  other.state.lr_counter = 11;
  other.state.loss_scaler->scale = 512;
  EXPECT_THAT(
      run({"diff", a, make("b", other)}).out,
      AllOf(HasSubstr("metadata  step: 10 vs 12\n"), HasSubstr("metadata  data.sample: 32 vs 40\n"),
            HasSubstr("metadata  optimizer.lr_counter: 10 vs 11\n"),
            HasSubstr("metadata  optimizer.loss_scaler.scale: 1024.0 vs 512.0\n"), Not(HasSubstr("data.epoch"))));
  other = {};
  other.state.rng = {{{"default", {1, 2, 4}}}};
  EXPECT_THAT(run({"diff", a, make("c", other)}).out, HasSubstr("metadata  rng.ranks: "));
  other = {};
  other.optimizer[0].second[1] = 0.5F;
  const Ended ended = run({"diff", a, make("d", other)});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("metadata  identical"), HasSubstr("2 tensors: 2 identical"),
                               HasSubstr("first difference: exp_avg.a")));
  EXPECT_EQ(run({"diff", a, path("d"), "--atol", "0.25"}).code, 0);
  const json answer = json::parse(run({"diff", a, path("d"), "--json"}).out);
  EXPECT_EQ(answer["agrees"], false);
  EXPECT_EQ(answer["weights"]["agrees"], true);
  EXPECT_EQ(answer["optimizer"]["tensors"][0]["max_abs"], 0.25);
}

TEST_F(CheckpointCommand, DiffSaysWhereOneHasNoOptimizerOrMetadata) {
  const std::string a = make("a"), b = make("b");
  fs::remove(b + "/optimizer.safetensors");
  fs::remove(b + "/metadata.json");
  const Ended ended = run({"diff", a, b});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("metadata  metadata.json: \"present\" vs none"), HasSubstr("optimizer\nonly in A")));
  EXPECT_EQ(run({"diff", b, b}).code, 0);
  EXPECT_EQ(run({"diff", a, path("nowhere")}).code, 2);
  EXPECT_EQ(run({"diff", a, b, "--rtol", "-1"}).code, 2);
}

}  // namespace
}  // namespace concord
