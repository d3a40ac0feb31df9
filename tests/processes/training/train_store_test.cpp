// Interference by other users of the machine with a training job: connecting to its port, and leaving half a model in
// its folder.
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>

#include "tests/free_port.h"
#include "tests/processes/store_stranger.h"
#include "tests/processes/train_program.h"

namespace concord::testing_processes {
namespace {

namespace fs = std::filesystem;
using tests::StoreStranger;

// Returns "socket:[1234]" for all sockets that the processes have open.
std::set<std::string> sockets_of(const std::vector<pid_t>& pids) {
  std::set<std::string> found;
  for (const pid_t pid : pids) {
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
      const std::string target = fs::read_symlink(entry.path(), gone).string();
      if (target.starts_with("socket:")) found.insert(target);
    }
  }
  return found;
}

// Returns the addresses at which the processes listen, as in /proc/net: "0100007F:1234" is 127.0.0.1.
std::vector<std::string> listening(const std::vector<pid_t>& pids) {
  const std::set<std::string> theirs = sockets_of(pids);
  std::vector<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::vector<std::string> fields(std::istream_iterator<std::string>(words), {});
      if (fields.size() < 10 || fields[3] != "0A") continue;
      if (theirs.contains("socket:[" + fields[9] + "]")) found.push_back(fields[1]);
    }
  }
  return found;
}

// Returns the content of all weight files below |folder|, by name: other files contain times.
std::map<std::string, std::string> files_below(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::string& bytes = files[fs::relative(entry.path(), folder)];
    if (entry.path().extension() != ".safetensors") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

class TrainStore : public Train {
 protected:
  // Returns the command of a job of two ranks at |port| that saves at every step.
  std::vector<std::string> job_at(int port, const std::string& output) {
    std::vector<std::string> command = {LAUNCH_PROGRAM,       "launch", "--nproc",      "2",    "--master_port",
                                        std::to_string(port), "--",     LAUNCH_PROGRAM, "train"};
    const std::vector<std::string> more = train_args(
        {"--output_dir", output, "--max_steps", "6", "--save_steps", "1", "--tensor_model_parallel_size", "2"});
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  bool wait_for_step(RunningProcess& process, const std::string& output) {
    return poll_until([&] { return fs::exists(output + "/checkpoint-1") || process.has_ended(); });
  }
};

TEST_F(TrainStore, AStrangerWithoutTheTokenChangesNoFileAndNoResult) {
  const ProcessSettings settings{.environment = {"OMP_NUM_THREADS=1"}};
  RunningProcess alone(job_at(tests::free_port(), path("alone")), settings);
  ASSERT_EQ(alone.wait(), 0) << alone.err();
  const int port = tests::free_port();
  RunningProcess disturbed(job_at(port, path("disturbed")), settings);
  StoreStranger stranger(port);
  int attacks = 0;
  // From the start until the job has exited.
  ASSERT_TRUE(poll_until([&] { return stranger.attack() || disturbed.has_ended(); }));
  for (; !disturbed.has_ended(); std::this_thread::sleep_for(std::chrono::milliseconds(1))) {  // ranks share the cores
    if (stranger.attack()) ++attacks;
  }
  EXPECT_GT(attacks, 50);
  ASSERT_EQ(disturbed.wait(), 0) << disturbed.err();
  const auto files = files_below(path("alone")), others = files_below(path("disturbed"));
  EXPECT_EQ(files.size(), others.size());
  for (const auto& [name, bytes] : files) {
    if (name.starts_with("model/") || name.starts_with("checkpoint-")) {
      EXPECT_TRUE(others.contains(name) && others.at(name) == bytes) << name;
    }
  }
  const auto expected = read_steps(path("alone")), steps = read_steps(path("disturbed"));
  ASSERT_EQ(steps.size(), expected.size());
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i]["loss"], expected[i]["loss"]) << i;
}

TEST_F(TrainStore, AJobListensAtTheAddressThatItWasGivenAlone) {
  const int port = tests::free_port();
  RunningProcess process(job_at(port, path("out")), {.environment = {"OMP_NUM_THREADS=1"}});
  ASSERT_TRUE(wait_for_step(process, path("out"))) << process.err();
  const std::vector<pid_t> pids = processes_with(path("out"));  // the launcher and its ranks
  EXPECT_GE(pids.size(), 3u);
  char expected[16];
  std::snprintf(expected, sizeof expected, "0100007F:%04X", static_cast<unsigned>(port));
  EXPECT_THAT(listening(pids), ::testing::ElementsAre(expected));
  EXPECT_EQ(process.wait(), 0) << process.err();
}

TEST_F(TrainStore, WhatAKilledRunLeftHalfWrittenIsRemovedByTheNext) {
  const std::string left = path("out/checkpoint-7.tmp-0123456789abcdef");
  fs::create_directories(left);
  std::ofstream(left + "/.concord-nonce") << "0123456789abcdef";
  std::ofstream(left + "/model.safetensors") << "half";
  TrainProgram next(train_args({"--max_steps", "1", "--save_strategy", "no"}));
  EXPECT_EQ(next.exit_code(), 0) << next.err();
  EXPECT_FALSE(fs::exists(left));
}

}  // namespace
}  // namespace concord::testing_processes
