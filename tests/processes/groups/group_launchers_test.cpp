// The hello example under every launcher: concord launch, torchrun, mpirun, and the variables of srun.
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

// Runs |command| without a token and expects four ranks that agree on the sum. On one machine no other user can reach
// the store, so no rank warns.
void expect_hello(const std::vector<std::string>& command, int warnings = 0) {
  RunningProcess process(command, {.environment = {"CONCORD_JOB_TOKEN="}});
  EXPECT_EQ(process.wait(), 0) << process.err();
  EXPECT_EQ(count_of("CONCORD_JOB_TOKEN is not set", process.err()), warnings) << process.err();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(process.out(), HasSubstr("rank " + std::to_string(rank) + " of 4 on cpu: the ranks add up to 6"))
        << process.err();
  }
}

// Succeeds in the second attempt only.
const std::string kFailsOnce = std::string(HELLO) + " && [ \"$TORCHELASTIC_RESTART_COUNT\" = 1 ]";

TEST(Hello, RunsUnderConcordLaunch) { expect_hello({LAUNCH_PROGRAM, "launch", "--nproc", "4", "--", HELLO}); }

TEST(Hello, RunsAgainAfterARestart) {
  expect_hello({LAUNCH_PROGRAM, "launch", "--nproc", "4", "--max_restarts", "1", "--", "sh", "-c", kFailsOnce});
}

TEST(Hello, RunsUnderTorchrun) {
  if (!std::filesystem::exists(TORCH_PYTHON)) GTEST_SKIP() << "there is no Python with torch at " << TORCH_PYTHON;
  expect_hello(
      {TORCH_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "--no-python", HELLO});
}

// The agent's store outlives an attempt, so the second one finds the keys of the first.
TEST(Hello, RunsAgainAfterARestartOfTorchrun) {
  if (!std::filesystem::exists(TORCH_PYTHON)) GTEST_SKIP() << "there is no Python with torch at " << TORCH_PYTHON;
  expect_hello({TORCH_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "--max-restarts",
                "1", "--monitor-interval", "0.1", "--no-python", "sh", "-c", kFailsOnce});
}

TEST(Hello, RunsUnderMpirun) {
  const std::string mpirun = find_program("mpirun");
  if (mpirun.empty()) GTEST_SKIP() << "there is no mpirun; install openmpi-bin";
  expect_hello({mpirun, "--oversubscribe", "--allow-run-as-root", "-n", "4", HELLO});
}

// Four processes with the variables that srun sets on |nodes| machines.
std::vector<std::string> as_srun(int nodes) {
  const std::string script = std::string(R"(pids=
export SLURM_NTASKS=4 SLURM_JOB_ID=$$ SLURM_STEP_ID=0
for rank in 0 1 2 3; do
  SLURM_PROCID=$rank SLURM_LOCALID=$((rank % EACH)) SLURM_NODEID=$((rank / EACH)) )") +
                             HELLO + R"( &
  pids="$pids $!"
done
for pid in $pids; do wait $pid || exit 1; done)";
  const std::string machines = nodes == 1 ? "localhost" : "localhost,elsewhere";
  const std::string tasks = nodes == 1 ? "4" : "2(x2)";
  return {"/usr/bin/env",
          "EACH=" + std::to_string(4 / nodes),
          "SLURM_JOB_NODELIST=" + machines,
          "SLURM_TASKS_PER_NODE=" + tasks,
          "CONCORD_CPU_NETWORK=never",
          "/bin/sh",
          "-c",
          script};
}

TEST(Hello, RunsWithTheVariablesOfSrun) { expect_hello(as_srun(1)); }

TEST(Hello, OverHostsWithoutATokenOneRankWarns) { expect_hello(as_srun(2), 1); }

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
