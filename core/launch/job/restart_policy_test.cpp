#include "core/launch/job/restart_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace concord {
namespace {

AttemptEnd failure(int64_t saved = -1) { return {.saved_step = saved, .kept_step = saved}; }

TEST(RestartPolicy, CountsFailuresWithoutProgressOnly) {
  RestartPolicy policy{.max_restarts = 2};
  for (int64_t step = 10; step < 200; step += 10) {
    const RestartPolicy::Next next = policy.after(failure(step));
    EXPECT_TRUE(next.restart && next.progressed) << step;
  }
  EXPECT_TRUE(policy.after(failure(190)).restart);
  EXPECT_FALSE(policy.after(failure(190)).restart);
}

TEST(RestartPolicy, WithoutRestartsEndsAtTheFirstFailure) {
  EXPECT_EQ(RestartPolicy{}.after(failure()).exit_code, 1);
  EXPECT_FALSE(RestartPolicy{}.after(failure(7)).restart);
}

TEST(RestartPolicy, TellsTheSchedulerWhatToDo) {
  EXPECT_EQ(RestartPolicy{}.after({.succeeded = true}).exit_code, 0);
  EXPECT_EQ(RestartPolicy{}.after({.stop_signal = 15, .stopped_as_asked = true}).exit_code, 143);
  EXPECT_EQ(RestartPolicy{}.after({.stop_signal = 15}).exit_code, 1);  // it has not saved
  EXPECT_EQ(RestartPolicy{}.after({.stop_signal = 15, .kept_step = 3}).exit_code, kExitRequeue);
  EXPECT_EQ(RestartPolicy{}.after({.saved_step = 5}).exit_code, 1);  // what was in memory only is gone
  EXPECT_EQ(RestartPolicy{}.after({.saved_step = 5, .kept_step = 5}).exit_code, kExitRequeue);
  EXPECT_EQ(RestartPolicy{.max_restarts = 9}.after({.exit_code = kExitBadDevice}).exit_code, kExitBadDevice);
}

// It would be the same again. One that has saved had the right settings.
TEST(RestartPolicy, DoesNotRepeatWrongUsage) {
  const RestartPolicy::Next next = RestartPolicy{.max_restarts = 9}.after({.exit_code = kExitUsage});
  EXPECT_FALSE(next.restart);
  EXPECT_EQ(next.exit_code, kExitUsage);
  EXPECT_EQ(RestartPolicy{}.after({.exit_code = kExitUsage}).exit_code, kExitUsage);
  EXPECT_TRUE(RestartPolicy{.max_restarts = 9}.after({.exit_code = kExitUsage, .saved_step = 3}).restart);
  RestartPolicy has_saved{.max_restarts = 9};
  EXPECT_TRUE(has_saved.after(failure(5)).restart);
  EXPECT_TRUE(has_saved.after({.exit_code = kExitUsage, .saved_step = 5, .kept_step = 5}).restart);
  EXPECT_EQ(RestartPolicy{}.after({.exit_code = kExitUsage, .saved_step = 5, .kept_step = 5}).exit_code, kExitRequeue);
}

// Every sequence of up to six ends of attempts: a stop is final, it restarts at most max_restarts times in a row
// without progress, and it ends with the first attempt that succeeds.
TEST(RestartPolicy, EverySequence) {
  const std::vector<AttemptEnd> ends = {{.succeeded = true},
                                        {.stop_signal = 15},
                                        {.stop_signal = 15, .stopped_as_asked = true},
                                        {.can_start_again = false},
                                        {.exit_code = kExitBadDevice},
                                        {.exit_code = kExitUsage},
                                        failure(-1),
                                        failure(4),
                                        failure(8)};
  for (int max_restarts = 0; max_restarts <= 2; ++max_restarts) {
    std::vector<size_t> digits(6, 0);
    for (bool more = true; more;) {
      RestartPolicy policy{.max_restarts = max_restarts};
      int64_t newest = -1;
      int in_a_row = 0;
      for (const size_t digit : digits) {
        AttemptEnd end = ends[digit];
        end.saved_step = std::max(newest, end.saved_step);  // what is saved stays
        in_a_row = end.saved_step > newest ? 0 : in_a_row;
        newest = end.saved_step;
        const RestartPolicy::Next next = policy.after(end);
        const bool is_failure = !end.succeeded && end.stop_signal == 0;
        const bool would_repeat = end.exit_code == kExitUsage && newest < 0;
        if (next.restart) {
          ASSERT_TRUE(is_failure && end.can_start_again && !would_repeat);
        }
        if (next.restart) {
          ASSERT_LE(++in_a_row, max_restarts);
        }
        if (end.succeeded) {
          ASSERT_EQ(next.exit_code, 0);
        }
        if (!end.succeeded && !next.restart) {
          ASSERT_NE(next.exit_code, 0);
        }
        if (!next.restart) break;
      }
      size_t i = 0;
      while (i < digits.size() && ++digits[i] == ends.size()) digits[i++] = 0;
      more = i < digits.size();
    }
  }
}

}  // namespace
}  // namespace concord
