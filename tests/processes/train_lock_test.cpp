// `concord train` in a folder that others use too: one run at a time.
#include <gmock/gmock.h>

#include <csignal>

#include "tests/processes/train_program.h"

namespace concord::testing_processes {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class TrainLock : public Train {};

TEST_F(TrainLock, ASecondRunIsRefusedWhileTheFirstLives) {
  const std::vector<std::vector<std::string>> starts = {{"train"}, {"launch", "--nproc", "2", "--", "train"}};
  for (std::vector<std::string> command : starts) {
    const std::vector<std::string> run =
        words({"--max_steps", "1000000", "--save_steps", "2", "--save_total_limit", "2", "--overwrite_output_dir"});
    command.insert(command.begin(), LAUNCH_PROGRAM);
    command.insert(command.end(), run.begin(), run.end());
    RunningProcess first(command, {.environment = {"OMP_NUM_THREADS=1"}});
    ASSERT_TRUE(poll_until([&] { return fs::exists(path("out/.lock")); })) << first.err();
    const std::string named = "in use by process " + std::to_string(first.pid());
    for (const std::string more : {"--overwrite_output_dir", "--resume_from_checkpoint", "--bf16"}) {
      TrainProgram second(words({more, "true"}));
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
  TrainProgram first(words({"--nproc", "2", "--max_steps", "1000000", "--save_steps", "2", "--max_restarts", "1"}),
                     {.environment = {"CONCORD_FAULTS=kill:0@10+0"}});
  ASSERT_TRUE(first.process().wait_for_text("restart 1 of 1")) << first.err();
  TrainProgram second(words({"--overwrite_output_dir"}));
  EXPECT_EQ(second.exit_code(), 2) << second.err();
  EXPECT_THAT(second.err(), HasSubstr("in use by process " + std::to_string(first.process().pid())));
  first.process().signal(SIGTERM);
  EXPECT_EQ(first.exit_code(), 128 + SIGTERM) << first.err();
}

TEST_F(TrainLock, AKilledRunsFolderIsTakenOver) {
  TrainProgram first(words({"--nproc", "2", "--max_steps", "1000000", "--save_steps", "2"}));
  ASSERT_TRUE(poll_until([&] { return fs::exists(path("out/checkpoint-2")); })) << first.err();
  first.process().signal(SIGKILL);
  first.exit_code();
  ASSERT_TRUE(fs::exists(path("out/.lock")));
  TrainProgram second(words({"--overwrite_output_dir"}));
  EXPECT_EQ(second.exit_code(), 0) << second.err();
  EXPECT_FALSE(fs::exists(path("out/.lock")));
}

}  // namespace
}  // namespace concord::testing_processes
