#include "core/launch/watch/failure_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

namespace concord {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// What the process with this index has written.
auto wrote(int index, std::vector<std::string> lines) {
  return [=](int asked) { return asked == index ? lines : std::vector<std::string>{}; };
}
const auto kPeerTimeout = wrote(-1, {});

AttemptResult five_ranks_of_which_the_third_failed() {
  AttemptResult result;
  result.ends = {{1, 101, 0, 0.5, false},
                 {2, 102, W_EXITCODE(3, 0), 1.25, false},
                 {0, 100, SIGTERM, 1.3, true},
                 {3, 103, SIGTERM, 1.3, true},
                 {4, 104, SIGTERM, 1.3, true}};
  result.first_failure = 1;
  return result;
}

TEST(FailureReport, BeginsWithTheOneThatFailedFirst) {
  EXPECT_EQ(failure_report(five_ranks_of_which_the_third_failed(), 8, wrote(2, {"one", "two"})),
            "concord launch: rank 10 failed first: exit code 3\n"
            "  pid 102, local rank 2, 1.2 s after the start\n"
            "  last lines of its standard error:\n"
            "    | one\n"
            "    | two\n"
            "  rank 9: exit code 0\n"
            "  ranks 8,11,12: killed by SIGTERM (Terminated) (told to stop)\n");
}

TEST(FailureReport, BeginsWithTheRanksThatAreStopped) {
  AttemptResult result = five_ranks_of_which_the_third_failed();
  result.stopped = {{.index = 3, .pid = 103}};
  EXPECT_THAT(failure_report(result, 8, kPeerTimeout),
              StartsWith("concord launch: rank 11 is stopped (pid 103, by SIGSTOP or a "
                         "debugger); rank 10 failed first: exit code 3\n"));
  result.stopped.push_back({.index = 4, .pid = 104});
  EXPECT_THAT(failure_report(result, 8, kPeerTimeout), HasSubstr("ranks 11,12 are stopped (pid 103, 104, by SIGSTOP"));
}

TEST(FailureReport, SaysWhenNothingWasWritten) {
  EXPECT_THAT(failure_report(five_ranks_of_which_the_third_failed(), 0, kPeerTimeout),
              HasSubstr("nothing was written to standard error"));
}

// Only one of several ranks that fail for the same reason prints it, and another one may exit first.
TEST(FailureReport, ShowsWhatAnotherRankHasWrittenForAll) {
  AttemptResult result = five_ranks_of_which_the_third_failed();
  EXPECT_THAT(failure_report(result, 8, wrote(3, {"one"})),
              HasSubstr("  it wrote nothing to standard error; last lines of rank 11, which did:\n    | one\n"));
  result.ends[4].wait_status = W_EXITCODE(3, 0);
  const auto both = [](int index) { return std::vector<std::string>{"of " + std::to_string(index)}; };
  EXPECT_THAT(
      failure_report(result, 8, [&](int index) { return index < 3 ? std::vector<std::string>{} : both(index); }),
      HasSubstr("last lines of rank 12, which ended in the same way:\n    | of 4\n"));
  result.ends[1].wait_status = SIGKILL;  // it had nothing to say
  EXPECT_THAT(failure_report(result, 8, wrote(3, {"one"})), HasSubstr("nothing was written to standard error"));
}

TEST(FailureReport, ListsManyRanksInRanges) {
  AttemptResult result;
  for (int i = 0; i < 64; ++i) result.ends.push_back({i, 100 + i, i == 5 ? SIGSEGV : SIGTERM, 1, i != 5});
  result.first_failure = 5;
  const std::string text = failure_report(result, 0, kPeerTimeout);
  EXPECT_THAT(text, StartsWith("concord launch: rank 5 failed first: killed by SIGSEGV (Segmentation fault)\n"));
  EXPECT_THAT(text, HasSubstr("  ranks 0-4,6-63: killed by SIGTERM"));
}

TEST(FailureReport, ExplainsAKillThatNobodyHereSent) {
  AttemptResult result;
  result.ends = {{0, 100, SIGKILL, 1, false}};
  result.first_failure = 0;
  EXPECT_THAT(failure_report(result, 0, kPeerTimeout), HasSubstr("memory"));
}

TEST(FailureReport, ANobodysFaultStopHasNoFirstFailure) {
  AttemptResult result;
  result.stop_signal = SIGINT;
  result.ends = {{0, 100, SIGINT, 1, true}, {1, 101, SIGINT, 1, true}};
  const std::string text = failure_report(result, 0, kPeerTimeout);
  EXPECT_THAT(text, StartsWith("concord launch: stopped by SIGINT\n  ranks 0,1: killed by SIGINT (Interrupt)"));
  EXPECT_THAT(text, Not(HasSubstr("failed first")));
}

TEST(FailureReport, NamesSignals) {
  EXPECT_EQ(signal_name(SIGUSR1), "SIGUSR1");
  EXPECT_EQ(signal_name(63), "signal 63");
  EXPECT_EQ(describe_wait_status(W_EXITCODE(255, 0)), "exit code 255");
  EXPECT_EQ(describe_wait_status(SIGABRT | WCOREFLAG), "killed by SIGABRT (Aborted, core dumped)");
}

}  // namespace
}  // namespace concord
