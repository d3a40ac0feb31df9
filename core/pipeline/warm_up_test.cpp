#include "core/pipeline/warm_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/schedule/passes.h"
#include "core/schedule/schedule_csv.h"
#include "core/schedule/step_schedule.h"
#include "core/schedule/testing/random_schedule.h"

namespace concord {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> head_of(const Schedule& schedule, size_t rank) {
  std::vector<std::string> texts;
  const size_t head = warm_up(schedule)[rank];
  for (size_t i = 0; i < head; ++i) texts.push_back(to_string(schedule.ranks[rank][i]));
  return texts;
}

TEST(WarmUp, EndsBeforeTheFirstBackward) {
  const Schedule schedule = step_schedule({.kind = "zb-h1", .pp = 2, .microbatches = 4});
  EXPECT_THAT(head_of(schedule, 0), ElementsAre("0F0", "0SEND_F0", "0F1", "0SEND_F1"));
  EXPECT_THAT(head_of(schedule, 1), ElementsAre("1RECV_F0", "1RECV_F1", "1F0"));
}

TEST(WarmUp, OfOneRankIsItsFirstForwards) {
  EXPECT_THAT(head_of(step_schedule({.kind = "1f1b", .pp = 1, .microbatches = 4}), 0), ElementsAre("0F0"));
}

// The first rank is the last as well, and has a share of the warm-up that no other waits for.
TEST(WarmUp, OfAVHasForwardsOnEveryRank) {
  for (const int64_t pp : {2, 4, 8}) {
    const std::vector<size_t> heads = warm_up(step_schedule({.kind = "zb-v", .pp = pp, .microbatches = 2 * pp}));
    for (const size_t head : heads) EXPECT_GT(head, 0u);
  }
}

Schedule cut_to_heads(Schedule schedule) {
  const std::vector<size_t> heads = warm_up(schedule);
  for (size_t rank = 0; rank < heads.size(); ++rank) schedule.ranks[rank].resize(heads[rank]);
  return schedule;
}

// |whole| with its heads in front of it.
Schedule begun_again(const Schedule& whole) {
  Schedule schedule = cut_to_heads(whole);
  for (size_t rank = 0; rank < whole.ranks.size(); ++rank) {
    schedule.ranks[rank].insert(schedule.ranks[rank].end(), whole.ranks[rank].begin(), whole.ranks[rank].end());
  }
  return schedule;
}

void expect_closed(const Schedule& schedule) {
  const std::string text = schedule_csv(schedule);
  const Schedule heads = cut_to_heads(schedule);
  for (size_t rank = 0; rank < heads.ranks.size(); ++rank) {
    for (const Action& action : heads.ranks[rank]) {
      ASSERT_TRUE(action.kind == ActionKind::forward || action.kind == ActionKind::send_activation ||
                  action.kind == ActionKind::recv_activation)
          << text;
    }
    const size_t head = heads.ranks[rank].size();
    ASSERT_FALSE(head < schedule.ranks[rank].size() && schedule.ranks[rank][head].joined) << "a batch is cut\n" << text;
  }
  ASSERT_TRUE(naively_runs(heads)) << text;
  ASSERT_TRUE(naively_runs(begun_again(schedule))) << text;
}

TEST(WarmUp, EndsOnAllRanksByItselfAndCanBeginAgain) {
  std::mt19937 random(5);
  for (const char* kind : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
    for (const int64_t pp : {2, 3, 4, 8}) {
      for (const int64_t times : {1, 2, 4}) {
        expect_closed(step_schedule({.kind = kind, .pp = pp, .microbatches = times * pp}));
      }
    }
  }
  for (int i = 0; i < 500; ++i) {
    expect_closed(complete_schedule(random_schedule(random, uniform(random, 1, 6), uniform(random, 1, 3),
                                                    uniform(random, 1, 8), uniform(random, 0, 1) == 1)));
  }
}

}  // namespace
}  // namespace concord
