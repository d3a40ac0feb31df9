// `concord train` in a folder that others use too: one run at a time, and foreign files are kept.
#include <gmock/gmock.h>

#include <csignal>

#include "tests/processes/train_program.h"

namespace concord::testing_processes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

void write_note(const fs::path& path) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "mine";
}

class TrainLock : public Train {
 protected:
  void make_run() {
    TrainProgram program(train_args({"--max_steps", "2"}));
    ASSERT_EQ(program.exit_code(), 0) << program.err();
  }
};

TEST_F(TrainLock, ASecondRunIsRefusedWhileTheFirstLives) {
  const std::vector<std::vector<std::string>> starts = {{"train"}, {"launch", "--nproc", "2", "--", "train"}};
  for (std::vector<std::string> command : starts) {
    const std::vector<std::string> run = train_args(
        {"--max_steps", "1000000", "--save_steps", "2", "--save_total_limit", "2", "--overwrite_output_dir"});
    command.insert(command.begin(), LAUNCH_PROGRAM);
    command.insert(command.end(), run.begin(), run.end());
    RunningProcess first(command, {.environment = {"OMP_NUM_THREADS=1"}});
    ASSERT_TRUE(poll_until([&] { return fs::exists(path("out/.lock")); })) << first.err();
    const std::string named = "in use by process " + std::to_string(first.pid());
    for (const std::string more : {"--overwrite_output_dir", "--resume_from_checkpoint", "--bf16"}) {
      TrainProgram second(train_args({more, "true"}));
      EXPECT_EQ(second.exit_code(), 2) << more << second.err();
      EXPECT_THAT(second.err(), HasSubstr(named)) << more;
    }
    ASSERT_TRUE(poll_until([&] { return fs::exists(path("out/metrics.jsonl")); })) << first.err();
    first.signal(SIGTERM);
    const int status = first.wait();
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 128 + SIGTERM) << first.err();
    EXPECT_FALSE(fs::exists(path("out/.lock")));
  }
}

// The folder stays locked while no rank runs.
TEST_F(TrainLock, ALauncherKeepsTheFolderLockedWhileItsRanksAreRestarted) {
  TrainProgram first(train_args({"--nproc", "2", "--max_steps", "1000000", "--save_steps", "2", "--max_restarts", "1"}),
                     {.environment = {"CONCORD_FAULTS=kill:0@10+0"}});
  ASSERT_TRUE(first.process().wait_for_text("restart 1 of 1")) << first.err();
  TrainProgram second(train_args({"--overwrite_output_dir"}));
  EXPECT_EQ(second.exit_code(), 2) << second.err();
  EXPECT_THAT(second.err(), HasSubstr("in use by process " + std::to_string(first.process().pid())));
  first.process().signal(SIGTERM);
  EXPECT_EQ(first.exit_code(), 128 + SIGTERM) << first.err();
}

TEST_F(TrainLock, AKilledRunsFolderIsTakenOver) {
  TrainProgram first(train_args({"--nproc", "2", "--max_steps", "1000000", "--save_steps", "2"}));
  ASSERT_TRUE(poll_until([&] { return fs::exists(path("out/checkpoint-2")); })) << first.err();
  first.process().signal(SIGKILL);
  first.exit_code();
  ASSERT_TRUE(fs::exists(path("out/.lock")));
  TrainProgram second(train_args({"--overwrite_output_dir"}));
  EXPECT_EQ(second.exit_code(), 0) << second.err();
  EXPECT_FALSE(fs::exists(path("out/.lock")));
}

// As under torchrun, whose ranks are this process's children here.
TEST_F(TrainLock, TheFolderOfAnAttemptThatWillBeRestartedStaysLocked) {
  const std::vector<std::string> job = {"TORCHELASTIC_RUN_ID=x", "TORCHELASTIC_MAX_RESTARTS=2"};
  const std::vector<std::string> endless = train_args({"--max_steps", "1000000", "--save_steps", "2"});
  TrainProgram first(endless, {.environment = job});
  ASSERT_TRUE(poll_until([&] { return fs::exists(path("out/checkpoint-2")); })) << first.err();
  first.process().signal(SIGKILL);
  first.exit_code();
  TrainProgram other(train_args({"--overwrite_output_dir"}));
  EXPECT_EQ(other.exit_code(), 2) << other.err();
  EXPECT_THAT(other.err(), HasSubstr("in use by process " + std::to_string(::getpid())));
  std::vector<std::string> restarted = job;
  restarted.emplace_back("TORCHELASTIC_RESTART_COUNT=1");
  TrainProgram next(endless, {.environment = restarted});
  const std::string holder = "\"pid\":" + std::to_string(next.process().pid());
  EXPECT_TRUE(poll_until([&] {
    std::string text;
    return std::getline(std::ifstream(path("out/.lock")), text) && text.find(holder) != std::string::npos;
  })) << next.err();
}

TEST_F(TrainLock, FilesOfOthersInTheModelFolderStay) {
  make_run();
  write_note(path("out/model/notes.txt"));
  write_note(path("out/model/plots/loss.svg"));
  TrainProgram continued(train_args(
      {"--resume_from_checkpoint", "true", "--lr_scheduler_type", "constant", "--override_opt_param_scheduler"}));
  EXPECT_EQ(continued.exit_code(), 0) << continued.err();
  EXPECT_EQ(read_steps(path("out")).back()["step"], 4);
  EXPECT_TRUE(fs::exists(path("out/model/notes.txt")));
  EXPECT_TRUE(fs::exists(path("out/model/plots/loss.svg")));
  TrainProgram anew(train_args({"--overwrite_output_dir"}));
  EXPECT_EQ(anew.exit_code(), 2);
  EXPECT_THAT(anew.err(), HasSubstr("model/notes.txt' was not written by Concord"));
}

TEST_F(TrainLock, WhatIsOnlyCalledACheckpointIsRefusedAtTheStartAndStays) {
  make_run();
  write_note(path("out/checkpoint-3/notes.txt"));
  for (const std::string flag : {"--overwrite_output_dir", "--resume_from_checkpoint"}) {
    TrainProgram program(train_args({flag, "true", "--override_opt_param_scheduler"}));
    EXPECT_EQ(program.exit_code(), 2);
    EXPECT_THAT(program.err(), AllOf(HasSubstr("'checkpoint-3'"), HasSubstr("was not written by Concord")));
  }
  EXPECT_TRUE(fs::exists(path("out/checkpoint-3/notes.txt")));
}

// A restarted attempt does not check again: its job continues without the checkpoint of that step.
TEST_F(TrainLock, WhatGetsTheNameOfACheckpointDuringARunStaysAndTheRunGoesOn) {
  write_note(path("out/checkpoint-4/notes.txt"));
  std::ofstream(path("out/.concord-run.json")) << R"({"format": 1, "job": "x"})";
  TrainProgram program(train_args({"--max_steps", "6", "--save_steps", "2", "--save_total_limit", "1"}),
                       {.environment = {"TORCHELASTIC_RUN_ID=x", "TORCHELASTIC_RESTART_COUNT=1"}});
  EXPECT_EQ(program.exit_code(), 0) << program.err();
  EXPECT_THAT(program.err(), HasSubstr("the checkpoint of step 4 is skipped"));
  EXPECT_TRUE(fs::exists(path("out/checkpoint-4/notes.txt")));
  EXPECT_TRUE(fs::exists(path("out/checkpoint-6/model.safetensors")));
  EXPECT_FALSE(fs::exists(path("out/checkpoint-2")));
}

}  // namespace
}  // namespace concord::testing_processes
