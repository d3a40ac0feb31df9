#include "core/schedule/progress.h"

#include <gmock/gmock.h>

#include "core/schedule/passes.h"
#include "core/schedule/schedules.h"

namespace concord {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRanks[] = {10, 20, 30};

Schedule three_ranks() { return complete_schedule(make_schedule({.kind = "1f1b", .pp = 3, .microbatches = 4})); }

size_t index_of(const Schedule& schedule, int rank, const std::string& text) {
  const auto& actions = schedule.ranks[static_cast<size_t>(rank)];
  for (size_t i = 0; i < actions.size(); ++i) {
    if (to_string(actions[i]) == text) return i;
  }
  ADD_FAILURE() << text << " is not on rank " << rank;
  return 0;
}

TEST(PipelineProgress, SaysWhereEachRankIsAndForWhomItWaits) {
  const Schedule schedule = three_ranks();
  const size_t at = index_of(schedule, 0, "0B0");
  const std::optional<ListPosition> positions[] = {ListPosition{at, true},
                                                   ListPosition{index_of(schedule, 1, "1F1"), false},
                                                   ListPosition{schedule.ranks[2].size(), false}};
  const std::string lines = describe_positions(schedule, positions, kRanks);
  EXPECT_EQ(lines, "\n  rank 10: at action " + std::to_string(at + 1) + " of " +
                       std::to_string(schedule.ranks[0].size()) + " (0B0), waits for 1SEND_B0 of rank 20" +
                       "\n  rank 20: at action " + std::to_string(index_of(schedule, 1, "1F1") + 1) + " of " +
                       std::to_string(schedule.ranks[1].size()) + " (1F1)\n  rank 30: at the end of its " +
                       std::to_string(schedule.ranks[2].size()) + " actions");
}

TEST(PipelineProgress, AValueThatWasUsedProvesHowFarASilentRankCame) {
  const Schedule schedule = three_ranks();
  // Rank 0 runs 0B0 with the gradient of rank 1; rank 2 waits for the second activation of rank 1.
  const std::optional<ListPosition> positions[] = {ListPosition{index_of(schedule, 0, "0B0"), false}, std::nullopt,
                                                   ListPosition{index_of(schedule, 2, "2F1"), true}};
  const auto proven = proven_action(schedule, 1, positions);
  ASSERT_TRUE(proven);
  EXPECT_EQ(*proven, (ProvenAction{index_of(schedule, 1, "1SEND_B0"), 0}));
  EXPECT_THAT(describe_positions(schedule, positions, kRanks),
              HasSubstr("rank 20: no answer; past action " + std::to_string(proven->index + 1) + " of " +
                        std::to_string(schedule.ranks[1].size()) + " (1SEND_B0), which rank 10 has received"));
}

TEST(PipelineProgress, AValueThatIsAwaitedProvesNothing) {
  const Schedule schedule = three_ranks();
  const std::optional<ListPosition> positions[] = {std::nullopt, ListPosition{index_of(schedule, 1, "1F0"), true},
                                                   ListPosition{0, false}};
  EXPECT_EQ(proven_action(schedule, 0, positions), std::nullopt);
  EXPECT_THAT(describe_positions(schedule, positions, kRanks), HasSubstr("rank 10: no answer\n"));
}

}  // namespace
}  // namespace concord
