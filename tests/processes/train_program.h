// `concord train` as a process under test: an output folder, and its metrics.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/processes/launch/launch_helpers.h"
#include "tests/processes/running_process.h"
#include "tests/processes/token_rows.h"

namespace concord::testing_processes {

inline const std::string kGolden = CONCORD_GOLDEN;
inline const std::string kTinyModel = kGolden + "/hf/qwen2-tiny";

class TrainProgram {
 public:
  explicit TrainProgram(std::vector<std::string> words, ProcessSettings settings = {})
      : process_(whole_command(std::move(words)), one_thread(std::move(settings))) {}

  RunningProcess& process() { return process_; }
  std::string out() const { return process_.out(); }
  std::string err() const { return process_.err(); }
  int exit_code() {
    for (int minute = 0; minute < 5 && !poll_until([&] { return process_.has_ended(); }); ++minute) {
    }  // a run takes seconds, but on a machine that does other things too
    const int status = process_.wait();
    return status != -1 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  static std::vector<std::string> whole_command(std::vector<std::string> words) {
    words.insert(words.begin(), {LAUNCH_PROGRAM, "train"});
    return words;
  }
  // Ranks outnumber the cores.
  static ProcessSettings one_thread(ProcessSettings settings) {
    settings.environment.push_back("OMP_NUM_THREADS=1");
    return settings;
  }

  RunningProcess process_;
};

inline std::vector<nlohmann::json> read_lines(const std::filesystem::path& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

// Returns the training steps of metrics.jsonl; evaluations are in their own lines.
inline std::vector<nlohmann::json> read_steps(const std::string& output_dir) {
  std::vector<nlohmann::json> steps;
  for (nlohmann::json& line : read_lines(std::filesystem::path(output_dir) / "metrics.jsonl")) {
    if (line.contains("loss")) steps.push_back(std::move(line));
  }
  return steps;
}

// A test with a folder, data and the arguments of a short run.
class Train : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  // Returns the arguments of a run of a few steps, followed by |more|.
  std::vector<std::string> train_args(const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--model",
                                    kTinyModel,
                                    "--train_data",
                                    write_jsonl(path("data.jsonl"), 64, tokens_),
                                    "--output_dir",
                                    path("out"),
                                    "--max_steps",
                                    "4",
                                    "--per_device_train_batch_size",
                                    "2",
                                    "--learning_rate",
                                    "1e-2",
                                    "--logging_steps",
                                    "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Expects exit code 2 and returns the output.
  std::string refusal(const std::vector<std::string>& more) {
    TrainProgram program(train_args(more));
    EXPECT_EQ(program.exit_code(), 2) << program.err();
    EXPECT_FALSE(std::filesystem::exists(path("out/metrics.jsonl")));
    return program.err();
  }

  TemporaryFolder folder_;
  int tokens_ = 300;  // tokens of the data are less than it
};

}  // namespace concord::testing_processes
