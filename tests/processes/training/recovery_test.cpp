// Jobs that lose ranks and recover: compared by value with the same job without faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>

#include "tests/processes/training/resume_runs.h"

namespace concord::testing_processes {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Recovery : public TrainResume {
 protected:
  // Returns the report of `concord chaos` for a run of 24 steps.
  json chaos(const Args& options, const Args& layout) {
    Args command =
        Args{LAUNCH_PROGRAM, "chaos", "--json"} + options + Args{"--", "train"} +
        run_args("out", layout + Args{"--max_steps", "24", "--save_steps", "10", "--memory_checkpoint_steps", "3"});
    RunningProcess program(command, {.environment = {"OMP_NUM_THREADS=1"}});
    for (int minute = 0; minute < 5 && !poll_until([&] { return program.has_ended(); }); ++minute) {
    }
    EXPECT_EQ(program.wait(), 0) << program.err() << bytes_of(path("out/faults.log"));
    return json::parse(program.out(), nullptr, false);
  }
  void expect_survived(const json& report, size_t faults, int least_recoveries) {
    ASSERT_TRUE(report.is_object());
    EXPECT_EQ(report["faults"].size(), faults);
    EXPECT_TRUE(report["identical"].get<bool>()) << report["differences"];
    EXPECT_GE(report["recoveries"].get<int>(), least_recoveries);
    for (const json& fault : report["faults"]) {
      EXPECT_TRUE(fault["happened"].get<bool>()) << fault;
      const bool is_failure = fault["kind"] != "delay";
      EXPECT_EQ(fault["training_seconds"].is_number(), is_failure) << fault;
      const bool is_named = fault["kind"] == "kill" || fault["kind"] == "stop" || fault["kind"] == "hang";
      EXPECT_TRUE(!is_named || fault["named_rank"] == fault["rank"]) << fault;
    }
  }
};

// Each of the four ranks once, in steps 5, 11, 16 and 19. If two were lost in adjacent steps, the second could die
// before the first is detected, and both would be one failure.
TEST_F(Recovery, LosesRanksOfTensorAndDataParallelGroups) {
  expect_survived(chaos({"--seed", "28", "--faults", "4", "--kinds", "kill"}, layouts()[12].args), 4, 4);
}

TEST_F(Recovery, LosesRanksOfAPipeline) {
  expect_survived(chaos({"--seed", "5", "--faults", "3", "--kinds", "kill,delay"}, layouts()[8].args), 3, 1);
}

// In step 15, when the launcher has measured the duration of a step, and in step 2, when it has not.
TEST_F(Recovery, NamesAndReplacesARankThatIsStopped) {
  for (const char* seed : {"1", "5"}) {
    SCOPED_TRACE(seed);
    fs::remove_all(path("out"));
    expect_survived(chaos({"--seed", seed, "--faults", "1", "--kinds", "stop"}, ranks(2, 2)), 1, 1);
    EXPECT_THAT(bytes_of(path("out/faults.log")), HasSubstr("is stopped, by SIGSTOP or a debugger"));
  }
}

TEST_F(Recovery, ShowsWhereARankHangs) {
  expect_survived(chaos({"--seed", "4", "--faults", "1", "--kinds", "hang"}, ranks(2, 2)), 1, 1);
  // In step 2, for which only the first step was measured; before that, by time, in step 1.
  TrainProgram early(run_args("early", ranks(2, 2) + Args{"--max_restarts", "2", "--save_strategy", "no"}),
                     {.environment = {"CONCORD_FAULTS=kill:0@1ms+0,hang:1@2+0"}});
  EXPECT_EQ(early.exit_code(), 0) << early.err();
  EXPECT_THAT(early.err(), AllOf(HasSubstr("restart 2 of 2"), HasSubstr("rank 1 is in no call")));
  const std::string log = bytes_of(path("out/faults.log"));
  EXPECT_THAT(log, HasSubstr("is in no call and keeps the others waiting"));
  EXPECT_THAT(log, HasSubstr("libconcordtorch.so("));  // a frame of its stack
}

// A weight that becomes NaN is copied from the other replica; no device is reported.
TEST_F(Recovery, RepeatsWhatCouldNotBeWrittenAndForgetsANan) {
  const json report = chaos({"--seed", "2", "--faults", "2", "--kinds", "disk"}, ranks(2, 2));
  EXPECT_TRUE(report["identical"].get<bool>()) << report["differences"];
  EXPECT_GE(report["recoveries"].get<int>(), 1);
  fs::remove_all(path("out"));
  expect_survived(chaos({"--seed", "1", "--faults", "2", "--kinds", "nan"}, ranks(2, 2)), 2, 2);
  const std::string log = bytes_of(path("out/faults.log"));
  EXPECT_THAT(log, HasSubstr("the weights were copied from a replica"));
  EXPECT_THAT(log, ::testing::Not(HasSubstr("persistent")));
}

// If two are lost in adjacent steps, the second may die before the first is detected, or as a former spare, before
// there are other spares.
TEST_F(Recovery, SparesBecomeRanks) {
  TrainProgram job(run_args("out", ranks(2, 2) + Args{"--max_steps", "250", "--max_restarts", "3", "--spares", "2",
                                                      "--save_strategy", "no", "--memory_checkpoint_steps", "3"}),
                   {.environment = {"CONCORD_FAULTS=kill:1@150+0,kill:0@151+0,kill:0@249+0"}});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("2 of 2 ranks were spares"));
}

TEST_F(Recovery, ReplacesARankThatIsSlowButNotForEver) {
  const auto run = [&](const std::string& name, const std::string& faults) {
    TrainProgram job(run_args(name, ranks(2, 2) + Args{"--max_steps", "160", "--logging_steps", "5", "--max_restarts",
                                                       "3", "--straggler_action", "replace", "--save_strategy", "no",
                                                       "--memory_checkpoint_steps", "3"}),
                     {.environment = {"CONCORD_FAULTS=" + faults}});
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    return job.err();
  };
  const std::string said = run("slow", "slow:1@8+0,slow:1@45+0,slow:1@100+0");
  EXPECT_THAT(said, HasSubstr("it is replaced (time 1 of at most 2)"));
  EXPECT_THAT(said, HasSubstr("it is replaced (time 2 of at most 2)"));
  EXPECT_THAT(said, HasSubstr("rank 1 is kept: it was replaced 2 times already"));
  EXPECT_THAT(said, ::testing::Not(HasSubstr("restart 3")));
}

TEST_F(Recovery, FindsABitThatHasChangedAndTheRank) {
  const json report = chaos({"--seed", "6", "--faults", "1", "--kinds", "bitflip"}, ranks(4, 1));
  expect_survived(report, 1, 1);
  EXPECT_EQ(report["faults"][0]["named_rank"], report["faults"][0]["rank"]);
  const std::string log = bytes_of(path("out/faults.log"));
  EXPECT_THAT(log, HasSubstr("the replicas are not equal: rank "));
  EXPECT_THAT(log, ::testing::Not(HasSubstr("has made no progress"))) << "ranks that end do not hang";
}

TEST_F(Recovery, ChaosRemovesNothingThatItHasNotWritten) {
  fs::create_directories(path("out/reference"));
  std::ofstream(path("out/reference/mine")) << "mine";
  for (const Args& more : {Args{}, Args{"--overwrite_output_dir"}}) {
    if (!more.empty()) std::ofstream(path("out/recovery.txt")) << "mine";
    RunningProcess program(Args{LAUNCH_PROGRAM, "chaos", "--faults", "1", "--", "train"} +
                           run_args("out", ranks(2, 2) + more));
    EXPECT_EQ(WEXITSTATUS(program.wait()), 2);
    EXPECT_THAT(program.err(), HasSubstr("choose another folder"));
    EXPECT_EQ(bytes_of(path("out/reference/mine")), "mine");
    EXPECT_FALSE(fs::exists(path("out/reference.log")));
  }
}

// The job's launcher leads another session, so the terminal's signals do not reach it.
TEST_F(Recovery, ChaosEndsItsJobWithIt) {
  const Args command =
      Args{LAUNCH_PROGRAM, "chaos", "--", "train"} + run_args("out", ranks(2, 2) + Args{"--max_steps", "100000"});
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGKILL}) {
    RunningProcess program(command, {.environment = {"OMP_NUM_THREADS=1"}});
    const auto has_started = [&] { return processes_with(path("out")).size() > 3; };  // the launcher, its guard, a rank
    ASSERT_TRUE(poll_until(has_started)) << program.err();
    program.signal(signal);
    const int status = program.wait();
    EXPECT_TRUE(all_gone(path("out"))) << strsignal(signal);
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), 128 + signal) << program.err();
    fs::remove_all(path("out"));
  }
}

// A fault in every attempt, before its first checkpoint: the job gives up. A job that has saved can be requeued.
TEST_F(Recovery, GivesUpWithoutProgressAndSaysWhetherToRequeue) {
  for (const bool has_saved : {false, true}) {
    const std::string step = has_saved ? "7" : "2";
    std::string faults;
    for (int i = 0; i < 6; ++i) faults += (i ? "," : "") + std::string("kill:1@") + step + "+0";
    TrainProgram job(
        run_args(has_saved ? "saved" : "fresh",
                 ranks(2, 2) + Args{"--max_restarts", "2", "--memory_checkpoint_steps", "0", "--async_save", "false"}),
        {.environment = {"CONCORD_FAULTS=" + faults}});
    EXPECT_EQ(job.exit_code(), has_saved ? 75 : 1) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("restart 2 of 2"));
    EXPECT_THAT(job.err(), ::testing::Not(HasSubstr("restart 3")));
  }
}

// The folder is synced after a checkpoint was renamed. The rank that wrote it is killed before it can report it as
// complete.
TEST_F(Recovery, SaysToRequeueWhereTheWriterOfACheckpointIsKilledWhenItIsComplete) {
  TrainProgram job(run_args("out", ranks(2, 2)),
                   {.environment = {"LD_PRELOAD=" FILE_FAULTS_LIBRARY, "FILE_FAULTS_UNDER=" + path("out"),
                                    "FILE_FAULTS_NAME=out", "FILE_FAULTS_CALLS=sync", "FILE_FAULTS_ACTION=kill",
                                    "FILE_FAULTS_AT=1", "CONCORD_FLIGHT_FOLDER=" + path("")}});
  EXPECT_EQ(job.exit_code(), 75) << job.err();
  EXPECT_TRUE(fs::exists(path("out/checkpoint-5/manifest.json")));
  EXPECT_EQ(newest_checkpoint("out"), 5);
}

// The same error in every attempt: reported once, with the message of the rank that reports for all.
TEST_F(Recovery, DoesNotTryAWrongSettingAgain) {
  TrainProgram job(run_args("out", ranks(2, 2) + Args{"--max_restarts", "3"}),
                   {.environment = {"CONCORD_FAULTS=kill:2@20"}});
  EXPECT_EQ(job.exit_code(), 2) << job.err();
  EXPECT_THAT(job.err(), AllOf(HasSubstr("no restart: exit code 2"), HasSubstr("    | concord: ")));
  EXPECT_THAT(job.err(), ::testing::Not(HasSubstr("restart 1")));
  EXPECT_THAT(job.err(), ::testing::Not(HasSubstr("nothing was written")));
}

// The launcher's memory for its ranks is freed with it, even after kill -9.
TEST_F(Recovery, LeavesNothingInMemory) {
  fs::create_directories(path("memory"));
  TrainProgram job(run_args("out", ranks(2, 2) + Args{"--max_steps", "100000", "--max_restarts", "1",
                                                      "--memory_checkpoint_steps", "1", "--save_strategy", "no"}),
                   {.environment = {"CONCORD_MEMORY_DIR=" + path("memory")}});
  const auto has_checkpoint = [&] {
    for (const auto& entry : fs::recursive_directory_iterator(path("memory"))) {
      if (entry.path().filename() == "manifest.json") return true;
    }
    return false;
  };
  const auto never_throws = [](const auto& body) {
    try {
      return body();
    } catch (const fs::filesystem_error&) {
      return false;  // removed while it was read
    }
  };
  ASSERT_TRUE(poll_until([&] { return never_throws(has_checkpoint); }));
  for (const auto& entry : fs::directory_iterator(path("memory"))) {
    EXPECT_EQ(fs::status(entry.path()).permissions(), fs::perms::owner_all);
  }
  job.process().signal(SIGKILL);
  EXPECT_TRUE(poll_until([&] { return fs::is_empty(path("memory")); }));
}

// An obstacle prevents the checkpoint of step 3. That of step 6 is complete when a rank is killed: it is written while
// the next steps are delayed.
TEST_F(Recovery, TriesAgainWhatCouldNotBeKeptInMemory) {
  fs::create_directories(path("memory"));
  TrainProgram job(run_args("out", ranks(2, 2) + Args{"--max_restarts", "1", "--memory_checkpoint_steps", "3",
                                                      "--save_strategy", "no", "--logging_steps", "1"}),
                   {.environment = {"CONCORD_MEMORY_DIR=" + path("memory"),
                                    "CONCORD_FAULTS=delay:0@2+0,delay:0@7+0,delay:0@8+0,kill:1@9+0"}});
  ASSERT_TRUE(poll_until([&] { return !fs::is_empty(path("memory")); }));
  std::ofstream(fs::directory_iterator(path("memory"))->path() / "checkpoint-3") << "in the way";
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  const size_t said = job.err().find("a checkpoint in memory could not be written");
  ASSERT_NE(said, std::string::npos) << job.err();
  EXPECT_EQ(job.err().find("could not be written", said + 40), std::string::npos) << "once";
  EXPECT_THAT(job.out() + job.err(), HasSubstr("checkpoint-6, after step 6"));
}

TEST_F(Recovery, SaysWhatToDoWithoutAFolderInMemory) {
  TrainProgram job(run_args("out", ranks(2, 2) + Args{"--max_restarts", "1"}),
                   {.environment = {"CONCORD_MEMORY_DIR=" + path("nothing")}});
  EXPECT_EQ(job.exit_code(), 2);
  EXPECT_THAT(job.err(), HasSubstr("set CONCORD_MEMORY_DIR to another folder in memory"));
}

}  // namespace
}  // namespace concord::testing_processes
