#include "core/launch/hang_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace concord {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSecond = 1'000'000'000;

class HangWatchTest : public ::testing::Test {
 protected:
  HangWatchTest() {
    for (int i = 0; i < board_.ranks(); ++i) {
      board_.rank(i).phase = static_cast<int64_t>(RankPhase::training);
      board_.rank(i).limit = kSecond;
    }
  }
  std::optional<Overdue> after(milliseconds time) {
    return watch_.look(board_, now_ += time, [&](int index) { return index == stopped_; });
  }

  int stopped_ = -1;
  JobBoard board_{2};
  HangWatch watch_{2};
  std::chrono::steady_clock::time_point now_{};
};

TEST_F(HangWatchTest, SilenceLongerThanTheLimitIsOverdue) {
  std::optional<Overdue> found;
  int ticks = 0;
  for (; !found && ticks < 100; ++ticks) {
    ++board_.rank(0).beats;
    found = after(HangWatch::kTick);
  }
  ASSERT_TRUE(found);
  EXPECT_EQ(found->index, 1);
  EXPECT_EQ(found->phase, RankPhase::training);
  EXPECT_GT(found->silent_seconds, 1.0);
  EXPECT_LE(ticks, 23);
}

TEST_F(HangWatchTest, WithoutALimitNothingIs) {
  board_.rank(0).limit = board_.rank(1).limit = 0;
  for (int i = 0; i < 10'000; ++i) EXPECT_FALSE(after(HangWatch::kTick));
}

// In the first steps, which have no limit.
TEST_F(HangWatchTest, WithoutALimitAStoppedRankIs) {
  board_.rank(0).limit = board_.rank(1).limit = 0;
  for (int i = 0; i < 1'000; ++i) EXPECT_FALSE(after(HangWatch::kTick));
  stopped_ = 1;
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(after(HangWatch::kTick)) << i;
  const std::optional<Overdue> found = after(HangWatch::kTick);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->index, 1);
  EXPECT_EQ(found->limit_seconds, 1.0);
  stopped_ = -1;
  EXPECT_FALSE(after(HangWatch::kTick));
}

// The launcher was stopped with its ranks for hours.
TEST_F(HangWatchTest, TimeThatNobodyWatchedDoesNotCount) {
  EXPECT_FALSE(after(HangWatch::kTick));
  EXPECT_FALSE(after(std::chrono::hours(5)));
  EXPECT_FALSE(after(HangWatch::kTick));
}

HangEvidence at_calls(int64_t rank, std::vector<GroupPosition> positions) {
  return {.rank = rank, .phase = RankPhase::training, .step = 12, .process_state = 'S', .positions = positions};
}
GroupPosition in_call(const std::string& group, int64_t number) {
  return {.group = group, .made = number, .finished = number - 1, .finished_call = "", .next_call = "all_reduce"};
}
GroupPosition through(const std::string& group, int64_t number) {
  return {.group = group, .made = number, .finished = number, .finished_call = "", .next_call = ""};
}

TEST(ExplainHang, ARankThatIsInNoCallKeepsTheOthersWaiting) {
  const HangVerdict verdict = explain_hang(
      {at_calls(0, {in_call("world", 8)}), at_calls(1, {through("world", 7)}), at_calls(2, {in_call("world", 8)})});
  EXPECT_THAT(verdict.guilty, ElementsAre(1));
  EXPECT_THAT(verdict.lines[0], HasSubstr("rank 0 is in call 8 (all_reduce) of group world and waits for rank 1"));
  EXPECT_THAT(verdict.lines[1], HasSubstr("rank 1 is in no call and keeps the others waiting (training, 12 steps"));
}

TEST(ExplainHang, ARankThatStartsIsNotBlamedForOneThatIsStopped) {
  const HangVerdict verdict = explain_hang({{.rank = 0, .phase = RankPhase::start_up, .positions = std::nullopt},
                                            {.rank = 1, .process_state = 'T', .positions = std::nullopt}});
  EXPECT_THAT(verdict.guilty, ElementsAre(1));
  EXPECT_EQ(verdict.lines[0], "rank 0 is starting");
}

// Ranks 0 and 1 wait in tp for nobody else's fault: 1 waits in pp for 3, which waits in another tp for 2.
TEST(ExplainHang, FollowsTheGraphOverGroups) {
  const HangVerdict verdict = explain_hang(
      {at_calls(0, {in_call("tp0", 5), through("pp0", 2)}), at_calls(1, {through("tp0", 4), in_call("pp1", 3)}),
       at_calls(2, {through("tp1", 6), through("pp0", 2)}), at_calls(3, {in_call("tp1", 7), through("pp1", 2)})});
  EXPECT_THAT(verdict.guilty, ElementsAre(2));
  EXPECT_THAT(verdict.lines[1], HasSubstr("waits for rank 3"));
  EXPECT_THAT(verdict.lines[3], HasSubstr("waits for rank 2"));
}

TEST(ExplainHang, StoppedAndSilentRanksAreNamed) {
  HangEvidence stopped = at_calls(1, {in_call("world", 8)});
  stopped.process_state = 'T';
  HangEvidence silent = at_calls(2, {});
  silent.positions.reset();
  const HangVerdict verdict = explain_hang({at_calls(0, {in_call("world", 8)}), stopped, silent});
  EXPECT_THAT(verdict.guilty, ElementsAre(1, 2));
  EXPECT_THAT(verdict.lines[0], HasSubstr("waits for ranks 1 and 2"));
  EXPECT_THAT(verdict.lines[1], HasSubstr("stopped"));
  EXPECT_THAT(verdict.lines[2], HasSubstr("does not answer"));
}

TEST(ExplainHang, NobodyIsNamedWhereAllWait) {
  EXPECT_THAT(explain_hang({at_calls(0, {in_call("world", 8)}), at_calls(1, {in_call("world", 8)})}).guilty, IsEmpty());
}

}  // namespace
}  // namespace concord
