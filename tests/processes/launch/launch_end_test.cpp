// How launched jobs end: by themselves, by a failure, by a signal, by kill -9; no process is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "tests/processes/launch/launch_helpers.h"

namespace concord::testing_processes {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

// Prints "ready" and waits to be terminated; the shell has no children meanwhile except a short sleep.
const std::string kWait = "echo ready; while :; do sleep 0.05; done";

std::string fail_on(const std::string& rank, const std::string& how, const std::string& otherwise = kWait) {
  return "if [ $RANK = " + rank + " ]; then " + how + "; fi; " + otherwise;
}

// Checks that |parts| occur in |text| in this order.
void expect_in_order(const std::string& text, const std::vector<std::string>& parts) {
  size_t at = 0;
  for (const std::string& part : parts) {
    at = text.find(part, at);
    ASSERT_NE(at, std::string::npos) << "'" << part << "' is not, or not in its place, in:\n" << text;
  }
}

// Exit code 143 means that only that rank received SIGTERM. The others usually stop as well; those that do not get
// SIGTERM.
TEST(LaunchEnd, WhoDoesNotEndAfterARankThatWasStoppedGetsSigtermFirst) {
  Launch job({"--nproc", "2", "--grace", "1"},
             shell("[ $RANK = 0 ] && exit 143; trap 'echo told; exit 143' TERM; while :; do sleep 0.05; done"));
  EXPECT_EQ(job.exit_code(), 143) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("[rank 1] told"));
}

TEST(LaunchEnd, OneThatExitsEndsTheOthersAndIsReportedFirst) {
  const std::string marker = unique_marker();
  Launch job({"--nproc", "4"}, shell(fail_on("2", "echo first line >&2; echo the reason >&2; exit 3"), marker));
  EXPECT_EQ(job.exit_code(), 1);
  expect_in_order(job.err(), {"concord launch: rank 2 failed first: exit code 3\n", "local rank 2",
                              "    | first line\n", "    | the reason\n", "ranks 0,1,3: killed by SIGTERM"});
  EXPECT_TRUE(processes_with(marker).empty());
}

TEST(LaunchEnd, OneThatDiesOfASignalIsReportedByItsName) {
  Launch job({"--nproc", "3"}, shell(fail_on("1", "kill -SEGV $$")));
  EXPECT_EQ(job.exit_code(), 1);
  expect_in_order(job.err(), {"concord launch: rank 1 failed first: killed by SIGSEGV (Segmentation fault",
                              "ranks 0,2: killed by SIGTERM"});
  EXPECT_THAT(job.err(), HasSubstr("nothing was written to standard error"));
}

// The others wait for it and fail; the cause must be reported first.
TEST(LaunchEnd, ARankThatIsStoppedIsTheFirstThatIsNamed) {
  const TemporaryFolder folder;
  const std::string waits =
      "until [ -s $FOLDER/pid ] && grep -q '^State:.T' /proc/$(cat $FOLDER/pid)/status; do sleep 0.01; done; exit 3";
  Launch job({"--nproc", "3", "--grace", "0.1"},
             shell(fail_on("1", "echo $$ > $FOLDER/pid; kill -STOP $$", fail_on("2", waits))),
             {.environment = {"FOLDER=" + folder.path()}});
  EXPECT_EQ(job.exit_code(), 1);
  expect_in_order(job.err(), {"concord launch: rank 1 is stopped (pid ", "); rank 2 failed first: exit code 3\n"});
}

TEST(LaunchEnd, FailuresThatFollowAreReportedAfterTheFirst) {
  // The others fail in response to the exit of rank 2, as ranks that lose a peer do.
  const TemporaryFolder folder;
  const std::string others =
      "trap 'echo lost a peer >&2; exit 7' TERM; touch $FOLDER/$RANK; while :; do sleep 0.05; done";
  const std::string cause = "while [ ! -e $FOLDER/0 -o ! -e $FOLDER/1 ]; do sleep 0.01; done; echo cause >&2; exit 9";
  Launch job({"--nproc", "3"}, shell(fail_on("2", cause, others)), {.environment = {"FOLDER=" + folder.path()}});
  EXPECT_EQ(job.exit_code(), 1);
  expect_in_order(job.err(),
                  {"concord launch: rank 2 failed first: exit code 9", "    | cause\n", "ranks 0,1: exit code 7"});
  EXPECT_THAT(job.err(), Not(HasSubstr("    | lost a peer")));
}

TEST(LaunchEnd, TheReportShowsTheLastTwentyLines) {
  Launch job({"--nproc", "1"}, shell("seq 1 5000 >&2; exit 1"));
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("    | 4981\n"), HasSubstr("    | 5000\n"), Not(HasSubstr("    | 4980\n"))));
}

TEST(LaunchEnd, OneThatDoesNotHeedSigtermIsKilledAfterTheGraceTime) {
  const std::string marker = unique_marker();
  const std::string deaf = "trap '' TERM; touch \"$FOLDER/$RANK\"; while :; do sleep 0.05; done";
  const TemporaryFolder folder;
  const std::string when_ready = "while [ ! -e \"$FOLDER/1\" ]; do sleep 0.01; done; exit 5";
  Launch job({"--nproc", "2", "--grace", "0.2"}, shell(fail_on("0", when_ready, deaf), marker),
             {.environment = {"FOLDER=" + folder.path()}});
  EXPECT_EQ(job.exit_code(), 1);
  expect_in_order(job.err(), {"rank 0 failed first: exit code 5", "rank 1: killed by SIGKILL"});
  EXPECT_TRUE(all_gone(marker));
}

TEST(LaunchEnd, ACleanEndIsZeroAlsoWhenRanksEndAtDifferentTimes) {
  Launch job({"--nproc", "3"}, shell("sleep 0.$RANK; echo done"));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.out_lines().size(), 3u);
  EXPECT_EQ(job.err(), "");
}

class LaunchSignal : public testing::TestWithParam<std::pair<int, const char*>> {};

TEST_P(LaunchSignal, IsPassedOn) {
  const auto [number, name] = GetParam();
  const std::string trap = std::string("trap 'echo got ") + name + "; exit 0' " + name + "; ";
  Launch job({"--nproc", "3"}, shell(trap + kWait));
  ASSERT_TRUE(job.process().wait_for_text("ready", 3));
  job.process().signal(number);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_THAT(job.out(), HasSubstr(std::string("[rank ") + rank + "] got " + name + "\n"));
  }
}

INSTANTIATE_TEST_SUITE_P(Each, LaunchSignal,
                         testing::Values(std::pair{SIGINT, "INT"}, std::pair{SIGTERM, "TERM"}, std::pair{SIGHUP, "HUP"},
                                         std::pair{SIGUSR1, "USR1"}, std::pair{SIGUSR2, "USR2"}),
                         [](const auto& test) { return test.param.second; });

TEST(LaunchEnd, AStopReachesWhatTheProcessesHaveStarted) {
  const std::string inner = "trap 'echo inner stopped; exit 0' TERM; " + kWait;
  Launch job({"--nproc", "1"}, shell("trap 'wait; exit 0' TERM; sh -c \"" + inner + "\" & wait"));
  ASSERT_TRUE(job.process().wait_for_text("ready"));
  job.process().signal(SIGTERM);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("inner stopped"));
}

TEST(LaunchEnd, AUserSignalReachesTheProcessesAlone) {
  // The inner sleep does not handle SIGUSR1 and would be killed by it.
  Launch job({"--nproc", "1"}, shell("sleep 1000 & trap 'kill $! && echo sleep was alive; exit 0' USR1; " + kWait));
  ASSERT_TRUE(job.process().wait_for_text("ready"));
  job.process().signal(SIGUSR1);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("sleep was alive"));
}

TEST(LaunchEnd, AJobThatIsStoppedIsNotReportedAsAFailure) {
  Launch job({"--nproc", "2", "--max_restarts", "3"}, shell(kWait));
  ASSERT_TRUE(job.process().wait_for_text("ready", 2));
  job.process().signal(SIGINT);
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr("concord launch: stopped by SIGINT\n"), HasSubstr("ranks 0,1: killed by SIGINT"),
                    Not(HasSubstr("failed first")), Not(HasSubstr("restart"))));
}

TEST(LaunchEnd, ASecondInterruptKills) {
  const std::string marker = unique_marker();
  Launch job({"--nproc", "2"}, shell("trap 'echo not now' INT; " + kWait, marker));
  ASSERT_TRUE(job.process().wait_for_text("ready", 2));
  job.process().signal(SIGINT);
  ASSERT_TRUE(job.process().wait_for_text("not now", 2));
  job.process().signal(SIGINT);
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("stopped by SIGINT"), HasSubstr("ranks 0,1: killed by SIGKILL")));
  EXPECT_TRUE(processes_with(marker).empty());
}

TEST(LaunchEnd, AHangupIsIgnoredUnderNohup) {
  Launch job({"--nproc", "1"}, shell("trap 'exit 0' USR1; " + kWait), {.ignore_hangup = true});
  ASSERT_TRUE(job.process().wait_for_text("ready"));
  job.process().signal(SIGHUP);
  job.process().signal(SIGUSR1);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
}

TEST(LaunchEnd, ItCanBeStoppedWhileNobodyReadsItsOutput) {
  const std::string marker = unique_marker();
  Launch job({"--nproc", "2", "--grace", "0.2"}, {"/usr/bin/yes", marker}, {.read_output = false});
  ASSERT_TRUE(poll_until([&] { return processes_with(marker).size() >= 4; }));  // the launcher, its guard, two ranks
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // by then every pipe is most likely full
  job.process().signal(SIGTERM);
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_TRUE(all_gone(marker));
}

TEST(LaunchEnd, ItWaitsForItsReaderUntilItIsStopped) {
  const std::string marker = unique_marker();
  const TemporaryFolder folder;
  const std::filesystem::path first = folder.path() + "/0";
  const std::filesystem::path second = folder.path() + "/1";
  Launch job({"--nproc", "2"}, shell("seq 1 20000; touch " + folder.path() + "/$RANK", marker), {.read_output = false});
  // The launcher buffers this much even without a reader, so the processes can exit.
  ASSERT_TRUE(poll_until([&] { return exists(first) && exists(second); }));
  EXPECT_FALSE(job.process().has_ended());
  // It may not have noticed their exit yet, and then forwards the signal to them: so retry.
  EXPECT_TRUE(poll_until([&] { return job.process().has_ended() || (job.process().signal(SIGTERM), false); }));
  EXPECT_TRUE(all_gone(marker));
}

TEST(LaunchEnd, RestartsStartAllProcessesAgain) {
  const std::string script = "echo attempt $TORCHELASTIC_RESTART_COUNT; ";
  Launch job(
      {"--nproc", "2", "--max_restarts", "2"},
      shell(script +
            "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || { [ $RANK = 1 ] && exit 4; while :; do sleep 0.05; done; }"));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.out(), AllOf(HasSubstr("[rank 1] attempt 0\n"), HasSubstr("[rank 1] attempt 1\n"),
                               HasSubstr("[rank 0] attempt 2\n"), HasSubstr("[rank 1] attempt 2\n")));
  expect_in_order(job.err(), {"rank 1 failed first: exit code 4", "restart 1 of 2", "rank 1 failed first: exit code 4",
                              "restart 2 of 2"});
}

TEST(LaunchEnd, RestartsRunOut) {
  Launch job({"--nproc", "2", "--max_restarts", "1"}, shell("echo attempt $TORCHELASTIC_RESTART_COUNT; exit 6"));
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_THAT(job.out(), AllOf(HasSubstr("attempt 0"), HasSubstr("attempt 1"), Not(HasSubstr("attempt 2"))));
}

TEST(LaunchEnd, ARankThatHasEndedIsNoZombie) {
  Launch job({"--nproc", "2"}, shell("echo pid $$; [ $RANK = 0 ] && exit 0; trap 'exit 0' USR1; " + kWait));
  ASSERT_TRUE(job.process().wait_for_text("pid", 2));
  pid_t first = 0;
  for (const std::string& line : job.out_lines()) {
    if (line.starts_with("[rank 0] pid ")) first = std::stoi(line.substr(13));
  }
  ASSERT_GT(first, 0);
  EXPECT_TRUE(is_gone(first));
  ASSERT_TRUE(job.process().wait_for_text("ready"));
  job.process().signal(SIGUSR1);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
}

struct Leftover {
  const char* name;
  const char* start;  // a background process with the marker in its command line
};

// In the rank's own process group; in a separate group, like interactive shells; a daemon in a separate session.
const Leftover kLeftovers[] = {
    {"InTheGroup", "sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' $0 &"},
    {"InAGroupOfItsOwn", "set -m; sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' $0 & set +m;"},
    {"Daemon", "setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' $0 &"},
};

class LaunchLeftover : public testing::TestWithParam<Leftover> {};

TEST_P(LaunchLeftover, IsGoneAfterACleanEnd) {
  const std::string marker = unique_marker();
  Launch job({"--nproc", "2", "--grace", "0.2"}, shell(std::string(GetParam().start) + " exit 0", marker));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_TRUE(processes_with(marker).empty());
  EXPECT_THAT(job.err(), HasSubstr("killed leftover child processes: pid"));
}

TEST_P(LaunchLeftover, IsGoneAfterAFailure) {
  const std::string marker = unique_marker();
  Launch job({"--nproc", "2", "--grace", "0.2"}, shell(std::string(GetParam().start) + fail_on("0", "exit 1"), marker));
  EXPECT_EQ(job.exit_code(), 1) << job.err();
  EXPECT_TRUE(processes_with(marker).empty());
}

TEST_P(LaunchLeftover, IsGoneAfterASecondInterrupt) {
  const std::string marker = unique_marker();
  Launch job({"--nproc", "2"}, shell(std::string(GetParam().start) + " trap 'echo not now' INT; " + kWait, marker));
  ASSERT_TRUE(job.process().wait_for_text("ready", 2));
  job.process().signal(SIGINT);
  ASSERT_TRUE(job.process().wait_for_text("not now", 2));
  job.process().signal(SIGINT);
  EXPECT_EQ(job.exit_code(), 1) << job.err();
  EXPECT_TRUE(processes_with(marker).empty());
}

INSTANTIATE_TEST_SUITE_P(Each, LaunchLeftover, testing::ValuesIn(kLeftovers),
                         [](const auto& test) { return test.param.name; });

TEST(LaunchEnd, WhatIsLeftRunningMayFinishItsWorkWithinTheGraceTime) {
  Launch job({"--nproc", "1", "--grace", "60"}, shell("(sleep 0.3; echo late) & exit 0"));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "[rank 0] late\n");
  EXPECT_EQ(job.err(), "");
}

TEST(LaunchEnd, KillNineOfTheLauncherLeavesNoProcess) {
  const std::string marker = unique_marker();
  Launch job({"--nproc", "8"}, shell("trap '' TERM INT HUP; " + kWait, marker));
  ASSERT_TRUE(job.process().wait_for_text("ready", 8));
  job.process().signal(SIGKILL);
  EXPECT_TRUE(all_gone(marker));
}

class LaunchKillNine : public testing::TestWithParam<Leftover> {};

TEST_P(LaunchKillNine, LeavesNoProcess) {
  const std::string marker = unique_marker();
  Launch job({"--nproc", "4"}, shell(std::string(GetParam().start) + kWait, marker));
  ASSERT_TRUE(job.process().wait_for_text("ready", 4));
  job.process().signal(SIGKILL);
  EXPECT_TRUE(all_gone(marker));
}

INSTANTIATE_TEST_SUITE_P(Each, LaunchKillNine, testing::ValuesIn(kLeftovers),
                         [](const auto& test) { return test.param.name; });

TEST(LaunchEnd, KillNineReachesWhatARankThatHasEndedLeftRunning) {
  const std::string marker = unique_marker();
  Launch job({"--nproc", "2"},
             shell(std::string(kLeftovers[0].start) + "[ $RANK = 0 ] && { echo ready; exit 0; }; " + kWait, marker));
  ASSERT_TRUE(job.process().wait_for_text("ready", 2));
  job.process().signal(SIGKILL);
  EXPECT_TRUE(all_gone(marker));
}

TEST(LaunchEnd, KillNineReachesALauncherInsideALauncher) {
  const std::string marker = unique_marker();
  const std::string inner = std::string(LAUNCH_PROGRAM) + " launch --nproc 2 -- sh -c '" + kWait + "' $0";
  Launch job({"--nproc", "2"}, shell("setsid " + inner, marker));
  ASSERT_TRUE(job.process().wait_for_text("ready", 4));
  job.process().signal(SIGKILL);
  EXPECT_TRUE(all_gone(marker));
}

TEST(LaunchEnd, KillNineAtAnyMomentLeavesNoProcess) {
  std::minstd_rand random(7);
  for (int round = 0; round < 40; ++round) {
    const std::string marker = unique_marker();
    Launch job({"--nproc", "6"}, shell(std::string(kLeftovers[0].start) + kWait, marker));
    usleep(static_cast<useconds_t>(random() % 30'000));
    job.process().signal(SIGKILL);
    ASSERT_TRUE(all_gone(marker)) << "round " << round;
  }
}

// The guard is a copy of the launcher, so it has its command line; it is the child that leads a session without being a
// rank.
pid_t guard_of(const Launch& job, const std::string& marker) {
  pid_t guard = -1;
  const auto has_session = [&] {  // ranks may have one sooner
    for (const pid_t pid : processes_with(marker)) {
      if (pid != job.pid() && getsid(pid) == pid && command_line(pid) == command_line(job.pid())) guard = pid;
    }
    return guard > 0;
  };
  EXPECT_TRUE(poll_until(has_session)) << "there is no guard";
  return guard;
}

TEST(LaunchEnd, AGuardThatIsKilledOrStoppedDoesNotDisturbTheJob) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const std::string marker = unique_marker();
    Launch job({"--nproc", "2"}, shell("trap 'exit 0' USR1; " + kWait, marker));
    ASSERT_TRUE(job.process().wait_for_text("ready", 2));
    const pid_t guard = guard_of(job, marker);
    ASSERT_GT(guard, 0);
    kill(guard, signal);
    job.process().signal(SIGUSR1);
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    EXPECT_TRUE(all_gone(marker));
  }
}

TEST(LaunchEnd, WithoutTheGuardTheKernelStillEndsTheProcessesOfALauncherThatIsKilled) {
  const std::string marker = unique_marker();
  Launch job({"--nproc", "4"}, shell("trap '' TERM INT HUP; " + kWait, marker));
  ASSERT_TRUE(job.process().wait_for_text("ready", 4));
  const pid_t guard = guard_of(job, marker);
  ASSERT_GT(guard, 0);
  kill(guard, SIGKILL);
  job.process().signal(SIGKILL);
  EXPECT_TRUE(all_gone(marker));
}

}  // namespace
}  // namespace concord::testing_processes
