// The hello example under every launcher: concord launch, torchrun, mpirun, and variables as srun sets them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "core/mesh/job_environment.h"
#include "tests/processes/running_process.h"

namespace concord::testing_processes {
namespace {

using ::testing::HasSubstr;

int count_of(const std::string& part, const std::string& text) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Runs |command| and expects four ranks that agree on the sum. Without a token one of them says once per attempt that
// the store is open.
void expect_hello(const std::vector<std::string>& command, int attempts_without_token) {
  RunningProcess process(command, {.environment = {"CONCORD_JOB_TOKEN="}});
  EXPECT_EQ(process.wait(), 0) << process.err();
  EXPECT_EQ(count_of("CONCORD_JOB_TOKEN is not set", process.err()), attempts_without_token) << process.err();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(process.out(), HasSubstr("rank " + std::to_string(rank) + " of 4 on cpu: the ranks add up to 6"))
        << process.err();
  }
}

// Succeeds in the second attempt only.
const std::string kFailsOnce = std::string(HELLO) + " && [ \"$TORCHELASTIC_RESTART_COUNT\" = 1 ]";

TEST(Hello, RunsUnderConcordLaunch) { expect_hello({LAUNCH_PROGRAM, "launch", "--nproc", "4", "--", HELLO}, 0); }

TEST(Hello, RunsAgainAfterARestart) {
  expect_hello({LAUNCH_PROGRAM, "launch", "--nproc", "4", "--max_restarts", "1", "--", "sh", "-c", kFailsOnce}, 0);
}

TEST(Hello, RunsUnderTorchrun) {
  if (!std::filesystem::exists(TORCH_PYTHON)) GTEST_SKIP() << "there is no Python with torch at " << TORCH_PYTHON;
  expect_hello(
      {TORCH_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "--no-python", HELLO}, 1);
}

// The agent's store outlives an attempt, so the second one finds the keys of the first there.
TEST(Hello, RunsAgainAfterARestartOfTorchrun) {
  if (!std::filesystem::exists(TORCH_PYTHON)) GTEST_SKIP() << "there is no Python with torch at " << TORCH_PYTHON;
  expect_hello({TORCH_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "--max-restarts",
                "1", "--monitor-interval", "0.1", "--no-python", "sh", "-c", kFailsOnce},
               2);
}

TEST(Hello, RunsUnderMpirun) {
  const std::string mpirun = find_program("mpirun");
  if (mpirun.empty()) GTEST_SKIP() << "there is no mpirun; install openmpi-bin";
  expect_hello({mpirun, "--oversubscribe", "--allow-run-as-root", "-n", "4", HELLO}, 1);
}

TEST(Hello, RunsWithTheVariablesOfSrun) {
  const std::string script = std::string(R"(pids=
for rank in 0 1 2 3; do
  SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=4 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=4 \
    SLURM_JOB_NODELIST=localhost SLURM_JOB_ID=$$ SLURM_STEP_ID=0 )") +
                             HELLO + R"( &
  pids="$pids $!"
done
for pid in $pids; do wait $pid || exit 1; done)";
  expect_hello({"/bin/sh", "-c", script}, 1);
}

TEST(Hello, RunsAlone) {
  RunningProcess process({HELLO});
  EXPECT_EQ(process.wait(), 0) << process.err();
  EXPECT_THAT(process.out(), HasSubstr("rank 0 of 1 on cpu: the ranks add up to 0"));
}

TEST(Hello, EndsWithASentenceForAWrongEnvironment) {
  RunningProcess process({HELLO}, {.environment = {"RANK=1"}});
  const int status = process.wait();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_THAT(process.err(), HasSubstr("hello: "));
  EXPECT_THAT(process.err(), HasSubstr("WORLD_SIZE"));
}

}  // namespace
}  // namespace concord::testing_processes
