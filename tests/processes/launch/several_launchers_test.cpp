// Jobs of several launchers, which would run on different machines: here all are on this one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <thread>

#include "core/launch/launcher.h"
#include "core/mesh/store/master_port.h"
#include "tests/processes/training/resume_runs.h"

namespace concord::testing_processes {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SeveralLaunchers : public TrainResume {
 protected:
  // Starts the launcher of machine |node|, with one rank of two, in a job of 12 steps with checkpoints after 5 and 10.
  std::unique_ptr<TrainProgram> launcher(int node, const Args& more = {}, const std::string& faults = "") {
    ProcessSettings settings{.environment = {"CONCORD_JOB_TOKEN=" + token_}};
    if (!faults.empty()) settings.environment.push_back("CONCORD_FAULTS=" + faults);
    if (args_.empty()) args_ = run_args("out", ranks(1, 4 / machines_));  // once: it writes the data
    const Args place = {"--nnodes",       std::to_string(machines_),
                        "--node_rank",    std::to_string(node),
                        "--master_addr",  "127.0.0.1",
                        "--master_port",  std::to_string(port_.port()),
                        "--max_restarts", "2",
                        "--async_save",   "false"};
    return std::make_unique<TrainProgram>(args_ + place + more, settings);
  }
  // Then a rank pauses, for less than what counts as a hang: time in which to kill a launcher.
  bool has_saved() {
    return poll_until([&] { return fs::exists(path("out/checkpoint-5/manifest.json")); });
  }
  bool has_done(size_t steps) {
    return poll_until([&] { return fs::exists(path("out/metrics.jsonl")) && read_steps(path("out")).size() >= steps; });
  }
  // The same job with one launcher and no faults, once for all tests.
  void run_alone() {
    static const TemporaryFolder kept;
    const fs::path folder = fs::path(kept.path()) / "alone";
    if (!fs::exists(folder)) {
      run("alone", ranks(2, 2));
      fs::copy(path("alone"), folder, fs::copy_options::recursive);
    } else {
      fs::copy(folder, path("alone"), fs::copy_options::recursive);
    }
  }
  // The same samples; sums are taken in another order.
  void expect_near_run(const std::string& one, const std::string& other) {
    const auto expected = read_steps(path(one)), steps = read_steps(path(other));
    ASSERT_EQ(expected.size(), steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(expected[i]["step"], steps[i]["step"]);
      EXPECT_EQ(expected[i]["tokens"], steps[i]["tokens"]);
      EXPECT_NEAR(expected[i]["loss"].get<double>(), steps[i]["loss"].get<double>(), 1e-4);
    }
  }
  void expect_no_ranks() { EXPECT_TRUE(all_gone(path("out"))); }

  const std::string token_ = "a text of more than sixteen characters";
  const HeldPort port_;
  Args args_;
  int machines_ = 2;
};

TEST_F(SeveralLaunchers, GoOnTogetherAfterARankIsKilled) {
  run_alone();
  auto first = launcher(0, {}, "kill:1@7+0");
  auto second = launcher(1, {}, "kill:1@7+0");
  ASSERT_EQ(first->exit_code(), 0) << first->err();
  EXPECT_EQ(second->exit_code(), 0) << second->err();
  EXPECT_THAT(first->err(), HasSubstr("rank 1 on machine 1 (process " + std::to_string(second->process().pid())));
  EXPECT_THAT(first->err(), HasSubstr("failed: killed by SIGKILL"));
  EXPECT_THAT(first->err(), HasSubstr("restart 1 of 2 (attempt 2)"));
  EXPECT_THAT(second->err(), HasSubstr("concord launch: attempt 2"));
  expect_same_run("alone", "out", 12);
  expect_no_ranks();
}

// Each launcher has its own, for its own ranks. Late: spares are loaded when the job trains.
TEST_F(SeveralLaunchers, TheirSparesBecomeRanks) {
  const Args spares = {"--max_steps", "200", "--save_steps", "100", "--spares", "1"};
  auto first = launcher(0, spares, "kill:1@190+0");
  auto second = launcher(1, spares, "kill:1@190+0");
  ASSERT_EQ(first->exit_code(), 0) << first->err();
  EXPECT_EQ(second->exit_code(), 0) << second->err();
  EXPECT_THAT(first->err(), HasSubstr("1 of 1 ranks were spares"));
  EXPECT_THAT(second->err(), HasSubstr("1 of 1 ranks were spares"));
  expect_no_ranks();
}

// Killed, and started again by whoever looks after the machines: the job ends as if nothing had happened.
TEST_F(SeveralLaunchers, WaitForALauncherThatIsKilled) {
  run_alone();
  auto first = launcher(0, {}, "delay:0@6+900");
  auto second = launcher(1);
  ASSERT_TRUE(has_saved());
  second->process().signal(SIGKILL);
  EXPECT_TRUE(first->process().wait_for_text("to be started again"));
  EXPECT_THAT(first->err(), HasSubstr("machine 1 (process " + std::to_string(second->process().pid())));
  EXPECT_THAT(first->err(), HasSubstr("is lost: its connection has ended"));
  auto third = launcher(1);
  ASSERT_EQ(first->exit_code(), 0) << first->err();
  EXPECT_EQ(third->exit_code(), 0) << third->err();
  expect_same_run("alone", "out", 12);
  expect_no_ranks();
}

// A third machine waits and becomes the one that is lost; a fourth one is not needed.
TEST_F(SeveralLaunchers, ASpareMachineTakesThePlaceOfOneThatIsLost) {
  run_alone();
  auto first = launcher(0, {}, "delay:0@6+900");
  auto second = launcher(1), third = launcher(2);
  EXPECT_TRUE(third->process().wait_for_text("this is a spare machine"));
  auto fourth = launcher(3);
  ASSERT_TRUE(has_saved());
  EXPECT_TRUE(fourth->process().wait_for_text("this is a spare machine"));
  second->process().signal(SIGKILL);
  ASSERT_EQ(first->exit_code(), 0) << first->err();
  EXPECT_EQ(third->exit_code(), 0) << third->err();
  EXPECT_EQ(fourth->exit_code(), 0) << fourth->err();
  const std::string name = "the spare machine 2 (process " + std::to_string(third->process().pid());
  EXPECT_THAT(first->err(), HasSubstr(name));
  EXPECT_THAT(first->err(),
              HasSubstr("takes the place of machine 1 (process " + std::to_string(second->process().pid())));
  EXPECT_THAT(third->err(), HasSubstr("this spare machine is machine 1 from now on"));
  EXPECT_THAT(fourth->err(), Not(HasSubstr("from now on")));
  expect_same_run("alone", "out", 12);
  expect_no_ranks();
}

// The state of the lost machine is in the memory of the next one: there is no checkpoint on disk, and none of the four
// machines has a complete one.
TEST_F(SeveralLaunchers, TheMemoryOfTheOthersHasWhatALostMachineHad) {
  machines_ = 4;
  const Args saving = {"--save_steps", "12", "--logging_steps", "1"};
  run("alone", ranks(4, 1) + saving);
  const Args memory = saving + Args{"--memory_checkpoint_steps", "3"};
  std::vector<std::unique_ptr<TrainProgram>> launchers;
  for (int node = 0; node < 5; ++node) launchers.push_back(launcher(node, memory, node == 0 ? "delay:0@8+900" : ""));
  EXPECT_TRUE(launchers[4]->process().wait_for_text("this is a spare machine"));
  EXPECT_TRUE(has_done(7));
  launchers[2]->process().signal(SIGKILL);
  for (const size_t node : {0, 1, 3, 4}) EXPECT_EQ(launchers[node]->exit_code(), 0) << launchers[node]->err();
  EXPECT_THAT(launchers[0]->out(), HasSubstr("restored/checkpoint-6, after step 6"));
  expect_same_run("alone", "out", 12);
  expect_no_ranks();
}

TEST_F(SeveralLaunchers, EndWhenALauncherDoesNotComeBack) {
  auto first = launcher(0, {"--rejoin_timeout", "0"}, "delay:0@6+900");
  auto second = launcher(1, {"--rejoin_timeout", "0"});
  ASSERT_TRUE(has_saved());
  second->process().signal(SIGKILL);
  EXPECT_EQ(first->exit_code(), 75) << first->err();
  EXPECT_THAT(first->err(), HasSubstr("did not come; the job ends"));
  expect_no_ranks();
}

// With the memory of the others, and with the name and the attempts of the job.
TEST_F(SeveralLaunchers, GoOnWithALeaderThatIsStartedAgain) {
  const Args saving = {"--save_steps", "12", "--logging_steps", "1"};
  run("alone", ranks(2, 2) + saving);
  const Args memory = saving + Args{"--memory_checkpoint_steps", "3"};
  auto first = launcher(0, memory);
  auto second = launcher(1, memory, "delay:1@8+900");
  ASSERT_TRUE(has_done(7));
  first->process().signal(SIGKILL);
  EXPECT_TRUE(second->process().wait_for_text("waiting up to 60 s for it to be started again"));
  auto third = launcher(0, memory + Args{"--resume_from_checkpoint", "true"});
  ASSERT_EQ(third->exit_code(), 0) << third->err() << second->err();
  EXPECT_EQ(second->exit_code(), 0) << second->err();
  EXPECT_THAT(third->err(), HasSubstr("continuing the job of machine 1"));
  EXPECT_THAT(third->out(), HasSubstr("restored/checkpoint-6, after step 6"));
  EXPECT_THAT(second->err(), HasSubstr("found the launcher that leads the job"));
  expect_same_run("alone", "out", 12);
  expect_no_ranks();
}

TEST_F(SeveralLaunchers, RejectAnEtcdThatTheyCannotUse) {
  const Args etcd = {"--rdzv_backend", "etcd", "--rdzv_endpoint", "127.0.0.1:1"};
  EXPECT_THAT(refusal(etcd + Args{"--nproc", "2"}),
              HasSubstr("--rdzv_id is ''; with --rdzv_backend etcd it must be a name of this job"));
  EXPECT_THAT(refusal(etcd + Args{"--nproc", "2", "--rdzv_id", "job"}), HasSubstr("add --nnodes and --max_restarts"));
  EXPECT_THAT(refusal({"--nproc", "2", "--rdzv_id", "job"}), HasSubstr("are for etcd; add --rdzv_backend etcd"));
}

TEST_F(SeveralLaunchers, EndWhenTheirLeaderIsKilled) {
  auto first = launcher(0, {"--rejoin_timeout", "0"});
  auto second = launcher(1, {"--rejoin_timeout", "0"}, "delay:1@6+900");
  ASSERT_TRUE(has_saved());
  first->process().signal(SIGKILL);
  EXPECT_EQ(second->exit_code(), 75) << second->err();
  EXPECT_THAT(second->err(), HasSubstr("the launcher that leads the job is lost: its connection has ended"));
  expect_no_ranks();
}

// The first machine goes on alone, with the same samples.
TEST_F(SeveralLaunchers, GoOnWithFewerRanks) {
  run_alone();
  const Args fewer = {"--allow_fewer_ranks", "--rejoin_timeout", "0"};
  auto first = launcher(0, fewer, "delay:0@6+900");
  auto second = launcher(1, fewer);
  ASSERT_TRUE(has_saved());
  second->process().signal(SIGKILL);
  EXPECT_EQ(first->exit_code(), 0) << first->err();
  EXPECT_THAT(first->err(), HasSubstr("(attempt 2, with 1 of 2 ranks)"));
  EXPECT_THAT(first->out() + first->err(), HasSubstr("4 samples per step: 1 per micro-batch x 4 accumulated"));
  expect_near_run("alone", "out");
  expect_no_ranks();
}

TEST_F(SeveralLaunchers, SayWhyTheyCannotJoin) {
  auto first = launcher(0);
  auto other = launcher(1, {"--max_restarts", "3"});
  EXPECT_EQ(other->exit_code(), 2) << other->err();
  EXPECT_THAT(other->err(), HasSubstr("--max_restarts is 3 on machine 1 and 2 on machine 0"));
  auto another = launcher(1, {"--allow_fewer_ranks"});
  EXPECT_EQ(another->exit_code(), 2) << another->err();
  EXPECT_THAT(another->err(), HasSubstr("(--allow_fewer_ranks) is 1 on machine 1 and 0 on machine 0"));
  first->process().signal(SIGTERM);
  EXPECT_EQ(first->exit_code(), 143) << first->err();
  EXPECT_THAT(first->err(), Not(HasSubstr("restart")));
}

// A rank that says that its device is at fault; the next attempt has the other one alone.
TEST(OneLauncher, LeavesOutADeviceThatIsAtFault) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/ranks";
  LaunchOptions options;
  options.nproc = 2;
  options.max_restarts = 1;
  options.recovers = true;
  options.worlds = {2, 1};
  const std::string script = "echo \"$WORLD_SIZE $RANK $LOCAL_RANK $CONCORD_SLOT $CONCORD_FULL_WORLD\" >> " + file +
                             "; [ $WORLD_SIZE = 1 ] && exit 0; [ $RANK = 0 ] && exit 71; exec sleep 1000";
  EXPECT_EQ(launch(options, std::vector<std::string>{"/bin/sh", "-c", script}), 0);
  EXPECT_THAT(bytes_of(file), ::testing::EndsWith("\n1 0 0 1 2\n"));
  options.worlds.clear();
  EXPECT_EQ(launch(options, std::vector<std::string>{"/bin/sh", "-c", script}), 71);
}

// The ranks are killed by the signal, or fail because others have exited. This holds for training only: the launcher
// does not know what other programs lose.
TEST(OneLauncher, EndsWithTheSignalsCodeWhereATrainingIsStoppedBeforeItsFirstStep) {
  const TemporaryFolder folder;
  const fs::path first = folder.path() + "/0", second = folder.path() + "/1";
  LaunchOptions options;
  options.nproc = 2;
  const auto run = [&](bool trains, const std::string& script) {
    options.recovers = trains;
    return launch(options, std::vector<std::string>{"/bin/sh", "-c", "cd " + folder.path() + "; " + script});
  };
  const auto stopped = [&](bool trains, const std::string& script) {
    fs::remove(first);
    fs::remove(second);
    std::thread sender([&] {
      if (poll_until([&] { return fs::exists(first) && fs::exists(second); })) ::kill(::getpid(), SIGTERM);
    });
    const int code = run(trains, script + "touch $RANK; while :; do sleep 0.02; done");
    sender.join();
    return code;
  };
  EXPECT_EQ(stopped(true, ""), 143);
  EXPECT_EQ(stopped(true, "[ $RANK = 1 ] && trap 'exit 1' TERM; "), 143);
  EXPECT_EQ(stopped(false, ""), 1);
  // The signal comes to rank 0 alone, and rank 1 fails when that has ended.
  EXPECT_EQ(
      run(true,
          "[ $RANK = 0 ] && { echo $$ > pid; exit 143; }; until [ -s pid ] && ! kill -0 $(cat pid) 2> /dev/null; do "
          "sleep 0.02; done; exit 1"),
      143);
  EXPECT_EQ(run(true, "[ $RANK = 1 ] && exit 1; trap 'exit 143' TERM; while :; do sleep 0.02; done"), 1);
}

// The outcome of a job, alone and with a leader, whose rank 1 exits with each of the documented exit codes.
TEST(OneLauncher, EndsOrStartsAgainAsTheExitCodeOfARankSays) {
  struct Case {
    int code, attempts, exit_code;
  };
  const int again = 3;  // the first attempt, and max_restarts
  for (const Case& one :
       std::vector<Case>{{0, 1, 0},
                         {1, again, 1},
                         {2, 1, 2},  // wrong usage
                         {71, 1, 71},
                         {75, again, 1},  // exit code of a nested launcher; this one has nothing to resume
                         {77, again, 1},
                         {143, 1, 143}}) {
    for (const bool has_leader : {false, true}) {
      SCOPED_TRACE(std::to_string(one.code) + (has_leader ? ", with a leader" : ""));
      const TemporaryFolder folder;
      const std::string file = folder.path() + "/attempts";
      LaunchOptions options;
      options.nproc = 2;
      options.max_restarts = again - 1;
      options.recovers = true;
      options.grace_seconds = 0.1;
      if (has_leader) options.worlds = {2, 2};  // no alternative sizes, but a leader that decides
      const std::string code = std::to_string(one.code);
      const std::string script = "[ $RANK = 1 ] && { echo x >> " + file + "; exit " + code + "; }; [ " + code +
                                 " = 0 ] && exit 0; trap 'exit 143' TERM; while :; do sleep 0.05; done";
      EXPECT_EQ(launch(options, std::vector<std::string>{"/bin/sh", "-c", script}), one.exit_code);
      EXPECT_EQ(bytes_of(file).size(), 2u * static_cast<size_t>(one.attempts));
    }
  }
}

// Both find no data and generate it, in the folder that they share.
TEST_F(SeveralLaunchers, WriteTheInputOfAFirstRunOneAfterTheOther) {
  const ProcessSettings settings{.environment = {"CONCORD_JOB_TOKEN=" + token_}};
  std::vector<std::unique_ptr<TrainProgram>> launchers;
  for (const char* node : {"0", "1"}) {
    launchers.push_back(std::make_unique<TrainProgram>(
        Args{"--nproc", "1", "--nnodes", "2", "--node_rank", node, "--master_addr", "127.0.0.1", "--master_port",
             std::to_string(port_.port()), "--output_dir", path("first"), "--max_steps", "2", "--save_strategy", "no"},
        settings));
  }
  for (auto& one : launchers) {
    EXPECT_EQ(one->exit_code(), 0) << one->err();
    EXPECT_THAT(one->err(), HasSubstr("  2 processes: data parallel 2 x tensor 1"));  // counts both machines
  }
  EXPECT_EQ(read_steps(path("first")).back()["tokens"], 2 * 32 * 64);
}

}  // namespace
}  // namespace concord::testing_processes
