#include "trainer/health/stragglers.h"

#include <gmock/gmock.h>

#include <random>

#include "core/base/config_error.h"

namespace concord {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// |steps| steps of 50 ms starting at |first|: 40 of compute, 4 of data, 1 of saving.
RankTable usual_table(int64_t first, int64_t steps, std::vector<int64_t> stages) {
  const double n = static_cast<double>(steps);
  RankTable table{.first_step = first, .last_step = first + steps - 1, .ranks = {}, .stages = std::move(stages)};
  table.ranks.assign(table.stages.size(),
                     {.compute = 0.040 * n, .data = 0.004 * n, .saving = 0.001 * n, .communication = 0.005 * n});
  return table;
}

double& time_of(RankTimes& times, RankActivity activity) {
  switch (activity) {
    case RankActivity::data: return times.data;
    case RankActivity::saving: return times.saving;
    case RankActivity::communication: return times.communication;
    default: return times.compute;
  }
}

// |rank| takes |factor| as long for a step, all of it for |cause|.
RankTable slowed(RankTable table, size_t rank, RankActivity cause, double factor) {
  time_of(table.ranks[rank], cause) += (factor - 1) * table.ranks[rank].own();
  return table;
}

TEST(Stragglers, AreNamedWithTheirCauseForEveryNumberOfRanksAndEveryCause) {
  for (size_t world = 2; world <= 9; ++world) {
    for (size_t rank = 0; rank < world; ++rank) {
      for (const RankActivity cause : {RankActivity::compute, RankActivity::data, RankActivity::saving}) {
        const std::vector<int64_t> stages(world, 0);
        const auto found = find_stragglers(slowed(usual_table(41, 10, stages), rank, cause, 1.2),
                                           slowed(usual_table(51, 10, stages), rank, cause, 1.3));
        ASSERT_EQ(found.size(), 1u) << world << " ranks, rank " << rank << ", " << to_string(cause);
        EXPECT_EQ(found[0].rank, static_cast<int64_t>(rank));
        EXPECT_EQ(found[0].cause, cause);
        EXPECT_NEAR(found[0].ratio, 1.25, 1e-9);
        EXPECT_NEAR(found[0].seconds - found[0].peers_seconds, 0.25 * 0.045, 1e-9);
        EXPECT_EQ(found[0].first_step, 41);
        EXPECT_EQ(found[0].last_step, 60);
      }
    }
  }
}

TEST(Stragglers, AreSlowFromTenPercentOn) {
  const auto named = [](double factor) {
    const RankTable table = slowed(usual_table(1, 10, {0, 0, 0, 0}), 2, RankActivity::compute, factor);
    return !find_stragglers(table, table).empty();
  };
  EXPECT_FALSE(named(1));
  EXPECT_FALSE(named(1.099));
  EXPECT_TRUE(named(1.101));
  EXPECT_FALSE(named(0.5)) << "a fast rank makes no other one slow";
}

TEST(Stragglers, OfTwoRanksTheSlowOneIsNamedAndNotTheOther) {
  const RankTable table = slowed(usual_table(1, 10, {0, 0}), 1, RankActivity::data, 3);
  const auto found = find_stragglers(table, table);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 1);
}

TEST(Stragglers, MoreWaitingThanPeersIsNotSlowness) {
  const RankTable table = slowed(usual_table(1, 10, {0, 0, 0}), 0, RankActivity::communication, 3);
  EXPECT_THAT(find_stragglers(table, table), IsEmpty());
}

TEST(Stragglers, MayBeSeveralButNotHalfOfTheRanks) {
  RankTable table = usual_table(1, 10, {0, 0, 0, 0, 0});
  table = slowed(slowed(table, 1, RankActivity::compute, 2), 4, RankActivity::data, 1.5);
  const auto found = find_stragglers(table, table);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_EQ(found[1].rank, 4);
  EXPECT_EQ(found[1].cause, RankActivity::data);
}

TEST(Stragglers, AreComparedWithinTheirStage) {
  // Stage 1 has twice the work of stage 0; rank 3 is slow there, rank 4 is alone in its stage.
  RankTable table = usual_table(1, 10, {0, 1, 0, 1, 2, 1});
  for (const size_t rank : {1u, 3u, 5u}) table.ranks[rank].compute *= 2;
  table.ranks[4].compute *= 10;
  EXPECT_THAT(find_stragglers(table, table), IsEmpty());
  table.ranks[3].compute *= 1.5;
  const auto found = find_stragglers(table, table);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 3);
}

TEST(Stragglers, OneRankHasNoPeers) {
  const RankTable table = usual_table(1, 10, {0});
  EXPECT_THAT(find_stragglers(table, table), IsEmpty());
}

TEST(Stragglers, TwoWindowsInARowAreNeeded) {
  const RankTable fine = usual_table(1, 10, {0, 0, 0}), slow = slowed(fine, 1, RankActivity::compute, 3);
  EXPECT_THAT(find_stragglers(fine, slow), IsEmpty());
  EXPECT_THAT(find_stragglers(slow, fine), IsEmpty());
  EXPECT_THAT(find_stragglers(slow, slowed(fine, 2, RankActivity::compute, 3)), IsEmpty()) << "another rank";
}

TEST(Stragglers, LessThanAMillisecondPerStepIsNoise) {
  RankTable table = usual_table(1, 10, {0, 0});
  for (RankTimes& times : table.ranks) times = {.compute = 0.002 * 10};
  table.ranks[0].compute = 0.0029 * 10;
  EXPECT_THAT(find_stragglers(table, table), IsEmpty());
  table.ranks[0].compute = 0.0031 * 10;
  EXPECT_EQ(find_stragglers(table, table).size(), 1u);
}

TEST(Stragglers, AreDescribedInOneLine) {
  EXPECT_EQ(to_string(Straggler{.rank = 3,
                                .ratio = 1.2445,
                                .cause = RankActivity::data,
                                .seconds = 0.0312,
                                .peers_seconds = 0.004,
                                .first_step = 41,
                                .last_step = 60}),
            "rank 3 is 24 % slower than its peers (data: 31 ms per step against 4.0 ms); steps 41 to 60");
}

// ---------------------------------------------------------------------------------------------------------- the watch

// The steps after which a rank is named, given intervals of |steps| steps in which rank 1 is slow where |slow| says so.
std::vector<int64_t> named_after(int64_t steps, const std::vector<bool>& slow) {
  StragglerWatch watch;
  std::vector<int64_t> named;
  int64_t next = 1;
  for (const bool is_slow : slow) {
    RankTable table = usual_table(next, steps, {0, 0, 0});
    if (is_slow) table = slowed(table, 1, RankActivity::compute, 1.5);
    if (!watch.add(table).empty()) named.push_back(table.last_step);
    next += steps;
  }
  return named;
}

TEST(StragglerWatch, NamesARankOnceUntilItHasRecovered) {
  EXPECT_THAT(named_after(10, {true, true, true, true}), ElementsAre(20));
  EXPECT_THAT(named_after(10, {false, true, true, true}), ElementsAre(30));
  EXPECT_THAT(named_after(10, {true, false, true, false}), IsEmpty());
  EXPECT_THAT(named_after(10, {true, true, false, true, true}), ElementsAre(20, 50));
  EXPECT_THAT(named_after(25, {true, true}), ElementsAre(50));
}

TEST(StragglerWatch, PutsShortIntervalsTogether) {
  EXPECT_THAT(named_after(1, std::vector<bool>(19, true)), IsEmpty());
  EXPECT_THAT(named_after(1, std::vector<bool>(60, true)), ElementsAre(20));
  EXPECT_THAT(named_after(4, std::vector<bool>(6, true)), ElementsAre(24));  // windows of 12 steps
  std::vector<bool> spikes(60, false);
  spikes[15] = spikes[16] = true;  // two slow steps: 10 % of one window, none of the next
  EXPECT_THAT(named_after(1, spikes), IsEmpty());
}

TEST(StragglerWatch, NamesARankAgainForAnotherCause) {
  StragglerWatch watch;
  const auto add = [&](int64_t first, RankActivity cause) {
    return watch.add(slowed(usual_table(first, 10, {0, 0}), 0, cause, first < 31 ? 1.5 : 3));
  };
  EXPECT_THAT(add(1, RankActivity::compute), IsEmpty());
  EXPECT_EQ(add(11, RankActivity::compute).size(), 1u);
  EXPECT_THAT(add(21, RankActivity::compute), IsEmpty());
  const auto found = add(31, RankActivity::data);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, RankActivity::data);
}

// Every rank's windows vary by a standard deviation of 3 %, and single steps by 10 %.
TEST(StragglerWatch, NoiseOfAFewPercentIsNoStraggler) {
  std::mt19937 generator(20);
  const auto noise = [&] {  // a sum of twelve uniform numbers: close to normal, the same with every library
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(generator()) / 4294967296.0;
    return sum;
  };
  for (const size_t world : {2u, 4u, 8u, 64u}) {
    StragglerWatch watch, by_step;
    for (int64_t window = 0; window < 1000; ++window) {
      RankTable table = usual_table(1 + 10 * window, 10, std::vector<int64_t>(world, 0));
      for (RankTimes& times : table.ranks) times.compute *= 1 + 0.03 * noise();
      EXPECT_THAT(watch.add(table), IsEmpty()) << world << " ranks, window " << window;
    }
    for (int64_t step = 1; step <= 10'000; ++step) {
      RankTable table = usual_table(step, 1, std::vector<int64_t>(world, 0));
      for (RankTimes& times : table.ranks) times.compute *= 1 + 0.1 * noise();
      EXPECT_THAT(by_step.add(table), IsEmpty()) << world << " ranks, step " << step;
    }
  }
}

}  // namespace
}  // namespace concord
