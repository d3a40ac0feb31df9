#include "core/launch/watch/hang_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "core/base/heartbeat.h"

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
  std::optional<TimedOutRank> after(milliseconds time) {
    return watch_.look(board_, now_ += time, [&](int index) { return index == stopped_; });
  }

  void expect_stopped_rank_overdue();

  int stopped_ = -1;
  JobBoard board_{2};
  HangWatch watch_{2};
  std::chrono::steady_clock::time_point now_{};
};

TEST_F(HangWatchTest, SilenceLongerThanTheLimitIsOverdue) {
  std::optional<TimedOutRank> found;
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

// In the first step, which has no limit, and in those after it, which have a long one.
TEST_F(HangWatchTest, WithoutALimitOrWithALongOneAStoppedRankIs) {
  for (const int64_t limit : {int64_t{0}, 100 * kSecond}) {
    SCOPED_TRACE(limit);
    board_.rank(0).limit = board_.rank(1).limit = limit;
    ++board_.rank(0).beats;
    ++board_.rank(1).beats;
    expect_stopped_rank_overdue();
  }
}

void HangWatchTest::expect_stopped_rank_overdue() {
  for (int i = 0; i < 1'000; ++i) EXPECT_FALSE(after(HangWatch::kTick));
  stopped_ = 1;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(after(HangWatch::kTick)) << i;
  const std::optional<TimedOutRank> found = after(HangWatch::kTick);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->index, 1);
  EXPECT_EQ(found->limit_seconds, 0.5);
  stopped_ = -1;
  EXPECT_FALSE(after(HangWatch::kTick));
}

// Before its limit of silence, which may be just as long as the second in which it is to be named.
TEST_F(HangWatchTest, WithAShortLimitAStoppedRankIsToo) {
  EXPECT_FALSE(after(HangWatch::kTick));
  stopped_ = 1;
  int ticks = 0;
  std::optional<TimedOutRank> found;
  for (; !found && ticks < 100; ++ticks) {
    ++board_.rank(0).beats;
    found = after(HangWatch::kTick);
  }
  ASSERT_TRUE(found);
  EXPECT_EQ(found->index, 1);
  EXPECT_EQ(found->limit_seconds, 0.5);
  EXPECT_LE(ticks, 13);
}

// The launcher was stopped with its ranks for hours.
TEST_F(HangWatchTest, TimeThatNobodyWatchedDoesNotCount) {
  EXPECT_FALSE(after(HangWatch::kTick));
  EXPECT_FALSE(after(std::chrono::hours(5)));
  EXPECT_FALSE(after(HangWatch::kTick));
}

// 10,000 steps of four ranks with noisy times: the limits that ranks learn (core/base/heartbeat.h) and the watch
// together, with a simulated clock. The first steps are slower; times are log-normal, and one step in fifty takes 2.5
// times as long; every 100 steps there is a save, every 200 an evaluation.
class NoisyJob {
 public:
  NoisyJob(double step_seconds, uint64_t seed) : step_seconds_(step_seconds), random_(seed) {}

  // Returns the number of steps until an alarm; |count| if there is none.
  int run(int count) {
    for (int step = 0; step < count; ++step) {
      const double warm_up = step < 3 ? 4 : 1;
      if (works(RankPhase::training, warm_up * noisy(step_seconds_))) return step;
      if (step % 100 == 99 && works(RankPhase::saving, noisy(0.4))) return step;
      for (int batch = 0; step % 200 == 199 && batch < 10; ++batch) {
        if (works(RankPhase::evaluating, noisy(step_seconds_ / 3))) return step;
      }
    }
    return count;
  }
  // Until rank 2, which does nothing any more, is overdue.
  std::optional<TimedOutRank> hang(double* seconds) {
    const auto begin = now_;
    enter(RankPhase::training);
    std::optional<TimedOutRank> found;
    while (!found && now_ - begin < std::chrono::hours(1)) {
      for (const int rank : {0, 1, 3}) ++board_.rank(rank).beats;
      found = look();
    }
    *seconds = std::chrono::duration<double>(now_ - begin).count();
    return found;
  }
  double limit() const { return limits_[static_cast<size_t>(RankPhase::training)].seconds().value(); }

 private:
  double noisy(double seconds) {
    const double factor = std::uniform_real_distribution<>()(random_) < 0.02 ? 2.5 : 1;
    return seconds * factor * std::lognormal_distribution<>(0, 0.4)(random_);
  }
  void enter(RankPhase phase) {
    const std::optional<double> limit = limits_[static_cast<size_t>(phase)].seconds();
    for (int rank = 0; rank < board_.ranks(); ++rank) {
      board_.rank(rank).phase = static_cast<int64_t>(phase);
      board_.rank(rank).limit = static_cast<int64_t>(limit.value_or(0) * 1e9);
      ++board_.rank(rank).beats;
    }
  }
  std::optional<TimedOutRank> look() {
    return watch_.look(board_, now_ += HangWatch::kTick, [](int) { return false; });
  }
  // Whether there was an alarm. A part of a tick is carried over to the next piece of work.
  bool works(RankPhase phase, double seconds) {
    enter(phase);
    for (left_ += seconds; left_ >= kTickSeconds; left_ -= kTickSeconds) {
      if (look()) return true;
    }
    limits_[static_cast<size_t>(phase)].add(seconds);
    return false;
  }

  static constexpr double kTickSeconds = std::chrono::duration<double>(HangWatch::kTick).count();
  double step_seconds_;
  std::mt19937_64 random_;
  double left_ = 0;
  std::array<AdaptiveTimeout, kRankPhases> limits_;
  JobBoard board_{4};
  HangWatch watch_{4};
  std::chrono::steady_clock::time_point now_{};
};

TEST(HangLimits, NoFalseAlarmInTenThousandNoisyStepsAndAHangIsFound) {
  for (const double step_seconds : {0.005, 0.06, 0.4, 2.0}) {
    NoisyJob job(step_seconds, 7);
    ASSERT_EQ(job.run(10'000), 10'000) << step_seconds;
    double seconds = 0;
    const std::optional<TimedOutRank> found = job.hang(&seconds);
    ASSERT_TRUE(found) << step_seconds;
    EXPECT_EQ(found->index, 2);
    EXPECT_EQ(found->phase, RankPhase::training);
    EXPECT_LE(seconds, job.limit() + 0.15);
  }
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
  const HangVerdict verdict = diagnose_hang(
      {at_calls(0, {in_call("world", 8)}), at_calls(1, {through("world", 7)}), at_calls(2, {in_call("world", 8)})});
  EXPECT_THAT(verdict.culprits, ElementsAre(1));
  EXPECT_THAT(verdict.lines[0], HasSubstr("rank 0 is in call 8 (all_reduce) of group world and waits for rank 1"));
  EXPECT_THAT(verdict.lines[1], HasSubstr("rank 1 is in no call and keeps the others waiting (training, 12 steps"));
}

TEST(ExplainHang, ARankThatStartsIsNotBlamedForOneThatIsStopped) {
  const HangVerdict verdict = diagnose_hang({{.rank = 0, .phase = RankPhase::start_up, .positions = std::nullopt},
                                             {.rank = 1, .process_state = 'T', .positions = std::nullopt}});
  EXPECT_THAT(verdict.culprits, ElementsAre(1));
  EXPECT_EQ(verdict.lines[0], "rank 0 is starting");
}

// Ranks 0 and 1 wait in tp for nobody else's fault: 1 waits in pp for 3, which waits in another tp for 2.
TEST(ExplainHang, FollowsTheGraphOverGroups) {
  const HangVerdict verdict = diagnose_hang(
      {at_calls(0, {in_call("tp0", 5), through("pp0", 2)}), at_calls(1, {through("tp0", 4), in_call("pp1", 3)}),
       at_calls(2, {through("tp1", 6), through("pp0", 2)}), at_calls(3, {in_call("tp1", 7), through("pp1", 2)})});
  EXPECT_THAT(verdict.culprits, ElementsAre(2));
  EXPECT_THAT(verdict.lines[1], HasSubstr("waits for rank 3"));
  EXPECT_THAT(verdict.lines[3], HasSubstr("waits for rank 2"));
}

TEST(ExplainHang, ASilentRankIsBlamedWhereNoneIsStopped) {
  HangEvidence stopped = at_calls(1, {in_call("world", 8)});
  stopped.process_state = 'T';
  HangEvidence silent = at_calls(2, {});
  silent.positions.reset();
  const HangVerdict verdict = diagnose_hang({at_calls(0, {in_call("world", 8)}), stopped, silent});
  EXPECT_THAT(verdict.culprits, ElementsAre(1));
  EXPECT_THAT(diagnose_hang({at_calls(0, {in_call("world", 8)}), silent}).culprits, ElementsAre(2));
  EXPECT_THAT(verdict.lines[0], HasSubstr("waits for ranks 1 and 2"));
  EXPECT_THAT(verdict.lines[1], HasSubstr("stopped"));
  EXPECT_THAT(verdict.lines[2], HasSubstr("does not answer"));
}

TEST(ExplainHang, NobodyIsNamedWhereAllWait) {
  EXPECT_THAT(diagnose_hang({at_calls(0, {in_call("world", 8)}), at_calls(1, {in_call("world", 8)})}).culprits,
              IsEmpty());
}

}  // namespace
}  // namespace concord
