#include "trainer/report/rank_heat_map.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

namespace concord {
namespace {

// Steps |last| - 9 to |last|; |slow| takes twice as long as the others, waiting for data.
RankTable heat_table(int64_t last, size_t world, size_t slow) {
  RankTable table{.first_step = last - 9,
                  .last_step = last,
                  .ranks = std::vector<RankTimes>(world, {.compute = 1}),
                  .stages = std::vector<int64_t>(world, 0)};
  if (slow < world) table.ranks[slow].data = 1;
  return table;
}

TEST(RankHeatMap, HasARowPerRankAndAColumnPerInterval) {
  const RankHeatMap map = rank_heat_map({heat_table(10, 3, 9), heat_table(20, 3, 1)});
  EXPECT_EQ(map.ranks, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(map.columns, (std::vector<RankHeatMap::Column>{{1, 10}, {11, 20}}));
  EXPECT_EQ(map.cells[1][0].relative, 1);
  EXPECT_EQ(map.cells[1][0].cause, std::nullopt);
  EXPECT_EQ(map.cells[1][1].relative, 2);
  EXPECT_EQ(map.cells[1][1].cause, RankActivity::data);
  EXPECT_DOUBLE_EQ(map.cells[1][1].own_seconds, 0.2);
  EXPECT_NEAR(map.cells[0][1].relative, 1 / 1.5, 1e-12);
}

TEST(RankHeatMap, OfARunWithoutTimesIsEmpty) {
  const RankHeatMap map = rank_heat_map({});
  EXPECT_TRUE(map.ranks.empty() && map.columns.empty() && map.cells.empty());
}

TEST(RankHeatMap, OfOneRankHasNoPeers) {
  const RankHeatMap map = rank_heat_map({heat_table(10, 1, 9)});
  EXPECT_TRUE(std::isnan(map.cells.at(0).at(0).relative));
  EXPECT_DOUBLE_EQ(map.cells[0][0].own_seconds, 0.1);
}

TEST(RankHeatMap, OfALongRunCoversEveryStepOnce) {
  std::vector<RankTable> tables;
  for (int64_t i = 1; i <= 1001; ++i) tables.push_back(heat_table(10 * i, 2, 9));
  const RankHeatMap map = rank_heat_map(tables);
  EXPECT_LE(map.columns.size(), kMaxHeatColumns);
  EXPECT_GT(map.columns.size(), kMaxHeatColumns / 2);
  int64_t next = 1;
  for (const RankHeatMap::Column& column : map.columns) {
    EXPECT_EQ(column.first_step, next);
    next = column.last_step + 1;
  }
  EXPECT_EQ(next, 10'011);
}

TEST(RankHeatMap, OfManyRanksKeepsThoseThatWereSlowAtSomeTime) {
  const RankHeatMap map = rank_heat_map({heat_table(10, 1000, 999), heat_table(20, 1000, 500)});
  EXPECT_EQ(map.ranks.size(), kMaxHeatRows);
  EXPECT_EQ(map.world, 1000);
  EXPECT_TRUE(std::is_sorted(map.ranks.begin(), map.ranks.end()));
  EXPECT_EQ(map.ranks.back(), 999);
  EXPECT_EQ(map.ranks[kMaxHeatRows - 2], 500);
  EXPECT_EQ(map.ranks.front(), 0);
}

TEST(RankHeatMap, ARunThatWasResumedOnFewerRanksHasEmptyCells) {
  const RankHeatMap map = rank_heat_map({heat_table(10, 4, 9), heat_table(20, 2, 9)});
  EXPECT_EQ(map.ranks.size(), 4u);
  EXPECT_EQ(map.cells[3][0].relative, 1);
  EXPECT_TRUE(std::isnan(map.cells[3][1].own_seconds));
  std::vector<RankTable> many;  // adjacent tables are merged, but not across the change
  for (int64_t i = 1; i <= 500; ++i) many.push_back(heat_table(10 * i, i <= 243 ? 4 : 2, 9));
  const RankHeatMap joined = rank_heat_map(many);
  const auto ends = [&](const RankHeatMap::Column& column) { return column.last_step == 2430; };
  EXPECT_TRUE(std::any_of(joined.columns.begin(), joined.columns.end(), ends));
}

}  // namespace
}  // namespace concord
