#include "core/mesh/machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/config_error.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Machines, KeepTheirPartsOnTheNextOne) {
  const Machines machines{.first = {0, 2, 5}, .world = 6};  // 2, 3 and 1 ranks
  const int64_t keepers[] = {2, 3, 5, 5, 5, 0};
  for (int64_t rank = 0; rank < machines.world; ++rank) EXPECT_EQ(machines.backup_rank(rank), keepers[rank]) << rank;
  EXPECT_EQ((Machines{.first = {0}, .world = 2}.backup_rank(1)), 1);
}

TEST(Machines, FollowFromTheFirstRankOfEach) {
  const Machines machines =
      machines_from(std::vector<int64_t>{0, 0, 2, 2, 2, 5}, std::vector<int64_t>{2, 2, 3, 3, 3, 1});
  EXPECT_EQ(machines, (Machines{.first = {0, 2, 5}, .world = 6}));
  EXPECT_EQ(machines.ranks_of(1), (RankRange{2, 5}));
  EXPECT_EQ(machines.ranks_of(1).to_string(), "ranks 2-4");
  EXPECT_EQ(machines.ranks_of(2).to_string(), "rank 5");
}

TEST(Machines, AreRefusedWhereTheirRanksAreMixed) {
  using Ranks = std::vector<int64_t>;
  const auto mixed = [](const Ranks& first, const Ranks& local) {
    return refusal([&] { machines_from(first, local); });
  };
  // Ranks 0 and 2 on one machine, 1 and 3, or 1 alone, on the other.
  EXPECT_THAT(mixed({0, 1, 1, 2}, {2, 2, 2, 2}), HasSubstr("srun --distribution=block"));
  EXPECT_THAT(mixed({0, 1, 1}, {2, 1, 2}), HasSubstr("rank 0 is one of 2 on its machine and has the local rank 0"));
  EXPECT_NE(mixed({1, 1}, {2, 2}), "accepted");
  EXPECT_NE(mixed({-1, -1}, {2, 2}), "accepted");
  EXPECT_NE(mixed({0, 0, 2, 0}, {3, 3, 1, 3}), "accepted");
}

std::string whole(const ParallelSizes& sizes, std::vector<int64_t> first, bool shards_state = false) {
  return refusal([&] {
    check_machines_are_whole(RankLayout(sizes), {.first = std::move(first), .world = sizes.world}, shards_state);
  });
}

TEST(Machines, AreWholeWhereEachHasAllPartsOfTheModel) {
  EXPECT_EQ(whole({.world = 4}, {0, 1, 2}), "accepted");
  EXPECT_EQ(whole({.world = 8, .tensor = 2, .context = 2}, {0, 2, 4}), "accepted");
  EXPECT_EQ(whole({.world = 8, .tensor = 2, .pipeline = 2, .order = "tp-pp-cp-ep-dp"}, {0, 4}), "accepted");
  EXPECT_EQ(whole({.world = 8, .tensor = 2, .expert = 2, .expert_tensor = 1}, {0, 4}), "accepted");
  EXPECT_EQ(whole({.world = 4, .tensor = 4}, {0}), "accepted");
  EXPECT_EQ(whole({.world = 4}, {0}, true), "accepted");
}

TEST(Machines, AreRefusedWithWhatTheyLack) {
  EXPECT_THAT(whole({.world = 4, .tensor = 4}, {0, 2}),
              AllOf(HasSubstr("machine 0 (ranks 0-1) has 2 of the 4 parts"), HasSubstr("tensor_model_parallel_size 4"),
                    HasSubstr("save_on_each_node to false")));
  // Megatron's order has the stages outermost: one on each machine.
  EXPECT_THAT(whole({.world = 8, .pipeline = 2}, {0, 4}), AllOf(HasSubstr("machine 0 (ranks 0-3) has 1 of the 2 parts"),
                                                                HasSubstr("pipeline_model_parallel_size 2")));
  EXPECT_THAT(whole({.world = 8, .expert = 8}, {0, 4}),
              HasSubstr("has 4 of the 8 parts of the experts (expert_model_parallel_size 8)"));
  EXPECT_THAT(whole({.world = 6, .tensor = 2}, {0, 5}), HasSubstr("machine 1 (rank 5) has 1 of the 2 parts"));
  EXPECT_THAT(whole({.world = 4, .tensor = 2}, {0, 2}, true),
              AllOf(HasSubstr("use_distributed_optimizer"), HasSubstr("the 2 data-parallel ranks on 2 machines"),
                    HasSubstr("save_only_model to true")));
}

TEST(Machines, HaveAFirstRankOfEachStage) {
  const RankLayout layout({.world = 8, .tensor = 2, .pipeline = 2, .order = "tp-pp-cp-ep-dp"});
  const RankRange second{4, 8};
  EXPECT_EQ(first_of_stage(layout, 5, std::nullopt), 0);
  EXPECT_EQ(first_of_stage(layout, 7, std::nullopt), 2);
  EXPECT_EQ(first_of_stage(layout, 5, second), 4);
  EXPECT_EQ(first_of_stage(layout, 7, second), 6);
}

}  // namespace
}  // namespace concord
