// `concord train` under other launchers: the same losses as with --nproc.
#include <gmock/gmock.h>

#include "tests/processes/train_program.h"

namespace concord::testing_processes {
namespace {

class TrainLaunchers : public Train {
 protected:
  // Runs |launcher| followed by the arguments of a short run, and compares with two processes of --nproc.
  void expect_the_same_losses(std::vector<std::string> launcher) {
    TrainProgram own(train_args({"--nproc", "2", "--output_dir", path("own")}));
    ASSERT_EQ(own.exit_code(), 0) << own.err();
    const std::vector<std::string> more = train_args({});
    launcher.insert(launcher.end(), {LAUNCH_PROGRAM, "train"});
    launcher.insert(launcher.end(), more.begin(), more.end());
    RunningProcess process(launcher, {.environment = {"OMP_NUM_THREADS=1"}});
    ASSERT_EQ(process.wait(), 0) << process.err();
    const auto expected = read_steps(path("own")), steps = read_steps(path("out"));
    ASSERT_EQ(expected.size(), 4u);
    ASSERT_EQ(steps.size(), expected.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(steps[i]["loss"], expected[i]["loss"]) << i;
      EXPECT_EQ(steps[i]["tokens"], expected[i]["tokens"]) << "of two ranks";
    }
  }
};

TEST_F(TrainLaunchers, TorchrunTrainsAsOurOwnLauncherDoes) {
  if (!std::filesystem::exists(TORCH_PYTHON)) GTEST_SKIP() << "there is no Python with torch at " << TORCH_PYTHON;
  expect_the_same_losses(
      {TORCH_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"});
}

TEST_F(TrainLaunchers, MpirunTrainsAsOurOwnLauncherDoes) {
  const std::string mpirun = find_program("mpirun");
  if (mpirun.empty()) GTEST_SKIP() << "there is no mpirun; install openmpi-bin";
  expect_the_same_losses({mpirun, "--oversubscribe", "--allow-run-as-root", "-n", "2"});
}

}  // namespace
}  // namespace concord::testing_processes
