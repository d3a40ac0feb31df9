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
using ::testing::IsSupersetOf;

// Runs |command| and expects four ranks that agree on the sum.
void expect_hello(const std::vector<std::string>& command, const std::vector<std::string>& environment = {}) {
  RunningProcess process(command, {.environment = environment});
  EXPECT_EQ(process.wait(), 0) << process.err();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(process.out(), HasSubstr("rank " + std::to_string(rank) + " of 4 on cpu: the ranks add up to 6"))
        << process.err();
  }
}

TEST(Hello, RunsUnderConcordLaunch) { expect_hello({CONCORD_PROGRAM, "launch", "--nproc", "4", "--", HELLO}); }

TEST(Hello, RunsUnderTorchrun) {
  if (!std::filesystem::exists(TORCH_PYTHON)) GTEST_SKIP() << "there is no Python with torch at " << TORCH_PYTHON;
  expect_hello(
      {TORCH_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "--no-python", HELLO});
}

TEST(Hello, RunsUnderMpirun) {
  if (!std::filesystem::exists(MPIRUN)) GTEST_SKIP() << "there is no mpirun; install openmpi-bin";
  expect_hello({MPIRUN, "--oversubscribe", "--allow-run-as-root", "-n", "4", HELLO});
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
