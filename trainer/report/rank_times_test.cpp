#include "trainer/report/rank_times.h"

#include <gmock/gmock.h>

#include <cmath>

namespace concord {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::NanSensitiveDoubleNear;
using testing::Pair;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// |compute| seconds by rank, over ten steps.
RankTable table_of(const std::vector<double>& compute, std::vector<int64_t> stages) {
  RankTable table{.first_step = 11, .last_step = 20, .ranks = {}, .stages = std::move(stages)};
  for (const double seconds : compute) table.ranks.push_back({.compute = seconds});
  return table;
}

auto is_near(double value) { return NanSensitiveDoubleNear(value, 1e-12); }

TEST(RankTimes, OwnTimeIsAllButCommunication) {
  const RankTimes times{.compute = 1, .data = 2, .saving = 4, .communication = 8};
  EXPECT_EQ(times.own(), 7);
  double all = 0;
  for (const RankActivity activity : kRankActivities) all += times.of(activity);
  EXPECT_EQ(all, 15);
}

TEST(RankTimes, ARankIsComparedWithTheMedianOfItsPeersAndNotWithItself) {
  EXPECT_THAT(relative_own_times(table_of({3, 1}, {0, 0})), ElementsAre(is_near(3), is_near(1.0 / 3)));
  EXPECT_THAT(relative_own_times(table_of({1, 2, 4}, {0, 0, 0})),
              ElementsAre(is_near(1.0 / 3), is_near(2 / 2.5), is_near(4 / 1.5)));
  EXPECT_THAT(relative_own_times(table_of({2, 8, 2, 4}, {0, 0, 0, 0})),
              ElementsAre(is_near(0.5), is_near(4), is_near(0.5), is_near(2)));
}

TEST(RankTimes, OnlyRanksOfTheSameStageArePeers) {
  EXPECT_THAT(relative_own_times(table_of({1, 10, 2, 10, 7}, {0, 1, 0, 1, 2})),
              ElementsAre(is_near(0.5), is_near(1), is_near(2), is_near(1), is_near(kNone)));
  EXPECT_TRUE(std::isnan(peers_median(table_of({1, 10}, {0, 1}), 0, RankActivity::compute)));
}

TEST(RankTimes, WithoutAnyTimeThereIsNothingToCompare) {
  EXPECT_THAT(relative_own_times(table_of({1, 0}, {0, 0})), ElementsAre(is_near(kNone), is_near(0)));
}

// Compared with the definition, for all small tables.
TEST(RankTimes, TheMedianOfTheOthersIsThatOfTheListWithoutTheRank) {
  for (int64_t world = 2; world <= 5; ++world) {
    for (int code = 0; code < std::pow(3, world); ++code) {
      std::vector<double> compute;
      for (int64_t rank = 0, rest = code; rank < world; ++rank, rest /= 3)
        compute.push_back(1 + static_cast<double>(rest % 3));
      const RankTable table = table_of(compute, std::vector<int64_t>(static_cast<size_t>(world), 0));
      const std::vector<double> relative = relative_own_times(table);
      for (int64_t rank = 0; rank < world; ++rank) {
        const auto index = static_cast<size_t>(rank);
        EXPECT_DOUBLE_EQ(relative[index], compute[index] / peers_median(table, rank, RankActivity::compute));
      }
    }
  }
}

TEST(RankTimes, TwoIntervalsAreOne) {
  const RankTable first{.first_step = 1, .last_step = 4, .ranks = {{1, 2, 3, 4}}, .stages = {0}};
  const RankTable second{.first_step = 5, .last_step = 6, .ranks = {{10, 20, 30, 40}}, .stages = {0}};
  EXPECT_EQ(merged(first, second),
            (RankTable{.first_step = 1, .last_step = 6, .ranks = {{11, 22, 33, 44}}, .stages = {0}}));
  EXPECT_EQ(merged(first, second).steps(), 6);
}

TEST(RankTimes, ALogLineHasTheMediansPerStepAndTheSlowestRank) {
  RankTable table = table_of({0.5, 0.9, 0.4}, {0, 0, 0});
  table.ranks[0].communication = 0.4;
  table.ranks[2].communication = 0.5;
  EXPECT_THAT(rank_metrics(table),
              ElementsAre(Pair("rank_compute_seconds", DoubleNear(0.05, 1e-12)), Pair("rank_data_seconds", 0),
                          Pair("rank_saving_seconds", 0), Pair("rank_communication_seconds", DoubleNear(0.04, 1e-12)),
                          Pair("slowest_rank", 1), Pair("slowest_rank_ratio", DoubleNear(2, 1e-12))));
}

TEST(RankTimes, ALogLineOfRanksWithoutPeersNamesNone) {
  EXPECT_EQ(rank_metrics(table_of({0.5}, {0})).size(), 4u);
  EXPECT_EQ(rank_metrics(table_of({0.5, 3}, {0, 1})).size(), 4u);
  EXPECT_EQ(rank_metrics(table_of({0.5, 3, 0.6}, {0, 1, 0}))[4].second, 2);  // NaN is not slower than a number
}

}  // namespace
}  // namespace concord
