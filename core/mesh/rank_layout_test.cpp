#include "core/mesh/rank_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

#include "core/base/config_error.h"

namespace concord {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json golden() {
  std::ifstream file(std::string(CONCORD_GOLDEN) + "/groups/groups.json");
  return json::parse(file);
}

ParallelSizes sizes_of(const json& config) {
  return {.world = config["world"],
          .tensor = config["tp"],
          .context = config["cp"],
          .pipeline = config["pp"],
          .expert = config["ep"],
          .expert_tensor = config["etp"],
          .order = config["order"]};
}

std::string megatron_name(GroupKind kind) { return kind == GroupKind::tp_pp ? "mp" : std::string(to_string(kind)); }

json listed(const RankLayout& layout, GroupKind kind) {
  json groups = json::array();
  for (int64_t i = 0; i < layout.group_count(kind); ++i) groups.push_back(layout.group(kind, i).members());
  return groups;
}

std::string refusal(const ParallelSizes& sizes) {
  try {
    RankLayout layout(sizes);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RankLayout, EveryGroupOfEveryGoldenCaseIsMegatrons) {
  const json all = golden();
  int compared = 0;
  for (const json& entry : all["cases"]) {
    const RankLayout layout(sizes_of(entry["config"]));
    EXPECT_EQ(layout.dp(), entry["config"]["dp"]);
    EXPECT_EQ(layout.edp(), entry["config"]["edp"]);
    for (const GroupKind kind : all_group_kinds()) {
      const json groups = listed(layout, kind);
      if (entry.contains("groups")) {
        EXPECT_EQ(groups, entry["groups"][megatron_name(kind)]) << entry["config"] << " " << to_string(kind);
      } else {
        const json& digest = entry["digests"][megatron_name(kind)];  // the test of `concord plan` compares the hash too
        EXPECT_EQ(groups.size(), digest["count"]) << entry["config"] << " " << to_string(kind);
        EXPECT_EQ(groups.front(), digest["first"]) << entry["config"] << " " << to_string(kind);
        EXPECT_EQ(groups.back(), digest["last"]) << entry["config"] << " " << to_string(kind);
      }
      ++compared;
    }
  }
  EXPECT_GE(compared, 47 * kGroupKinds);
}

TEST(RankLayout, WhatMegatronRefusesIsRefused) {
  const json all = golden();
  ASSERT_FALSE(all["refused"].empty());
  for (const json& entry : all["refused"]) EXPECT_NE(refusal(sizes_of(entry["config"])), "accepted") << entry;
}

TEST(RankLayout, SixteenRanksTensorFourPipelineTwoGiveTheWellKnownTable) {
  const RankLayout layout({.world = 16, .tensor = 4, .pipeline = 2});
  EXPECT_EQ(listed(layout, GroupKind::tp).dump(), "[[0,1,2,3],[4,5,6,7],[8,9,10,11],[12,13,14,15]]");
  EXPECT_EQ(listed(layout, GroupKind::dp).dump(), "[[0,4],[1,5],[2,6],[3,7],[8,12],[9,13],[10,14],[11,15]]");
  EXPECT_EQ(listed(layout, GroupKind::tp_pp).dump(), "[[0,1,2,3,8,9,10,11],[4,5,6,7,12,13,14,15]]");
}

// Returns random legal sizes: the world is the product of the dense sizes, and the expert sizes divide it.
ParallelSizes random_sizes(std::mt19937& random) {
  const auto draw = [&] { return int64_t{1} << random() % 3; };
  std::vector<std::string> axes = {"tp", "cp", "ep", "dp", "pp"};
  std::shuffle(axes.begin(), axes.end(), random);
  ParallelSizes sizes{.tensor = draw(), .context = draw(), .pipeline = draw()};
  const int64_t dp = draw() * 3;
  sizes.world = sizes.tensor * sizes.context * sizes.pipeline * dp;
  sizes.expert = draw();
  sizes.expert_tensor = draw();
  sizes.order = std::accumulate(axes.begin() + 1, axes.end(), axes[0], [](auto a, auto b) { return a + "-" + b; });
  return sizes;
}

TEST(RankLayout, GroupsOfAnyPermutationPartitionTheWorldAndAgreeWithEachRanksOwnView) {
  std::mt19937 random(7);
  int accepted = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const ParallelSizes sizes = random_sizes(random);
    if (refusal(sizes) != "accepted") continue;
    ++accepted;
    const RankLayout layout(sizes);
    for (const GroupKind kind : all_group_kinds()) {
      std::set<int64_t> seen;
      for (int64_t g = 0; g < layout.group_count(kind); ++g) {
        const RankGroup group = layout.group(kind, g);
        for (int64_t i = 0; i < group.size(); ++i) {
          EXPECT_TRUE(seen.insert(group[i]).second);
          EXPECT_EQ(layout.group_of(kind, group[i]), group);
          EXPECT_EQ(group.index_of(group[i]), i);
        }
        EXPECT_EQ(group.index_of(group.first() + layout.world()), std::nullopt);
      }
      const bool partial = kind == GroupKind::embedding || kind == GroupKind::position_embedding;
      EXPECT_TRUE(partial || static_cast<int64_t>(seen.size()) == layout.world());
      for (int64_t rank = 0; rank < layout.world(); ++rank) {
        EXPECT_EQ(layout.group_of(kind, rank).has_value(), seen.count(rank) == 1);
      }
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(RankLayout, CoordinatesAndRanksAreInverse) {
  const RankLayout layout({.world = 48, .tensor = 2, .context = 2, .pipeline = 3, .order = "cp-tp-dp-ep-pp"});
  for (int64_t rank = 0; rank < 48; ++rank) {
    const RankCoordinates at = layout.coordinates(rank);
    EXPECT_EQ(layout.rank_at(at.tp, at.cp, at.dp, at.pp), rank);
    EXPECT_EQ(layout.group_of(GroupKind::tp, rank)->index_of(rank), at.tp);
    EXPECT_EQ(layout.group_of(GroupKind::edp, rank)->index_of(rank), at.edp);
  }
}

TEST(RankLayout, AWorldOfTwoToTheFortyIsAnsweredFromArithmetic) {
  const int64_t world = int64_t{1} << 40;
  const RankLayout layout({.world = world, .tensor = 8, .context = 4, .pipeline = 64});
  const int64_t rank = world - 1;
  const RankGroup data = *layout.group_of(GroupKind::dp, rank);
  EXPECT_EQ(data.size(), world / (8 * 4 * 64));
  EXPECT_EQ(data[data.size() - 1], rank);
  EXPECT_EQ(data.index_of(rank), data.size() - 1);
  EXPECT_EQ(layout.group_of(GroupKind::embedding, rank)->size(), 2);
}

TEST(RankLayout, BadSizesAreSentencesWithTheNumbers) {
  EXPECT_THAT(refusal({.world = 16, .tensor = 4, .pipeline = 3}),
              HasSubstr("tensor 4 x context 1 x pipeline 3 does not divide world size 16"));
  EXPECT_THAT(refusal({.world = 16, .expert = 3}), HasSubstr("expert 3"));
  EXPECT_THAT(refusal({.world = 0}), HasSubstr("world_size is 0"));
  EXPECT_THAT(refusal({.world = 4, .tensor = -2}), HasSubstr("tensor_model_parallel_size is -2"));
  EXPECT_THAT(refusal({.world = 4, .virtual_pipeline = 2}), HasSubstr("pipeline_model_parallel_size is 1"));
  EXPECT_THAT(refusal({.world = 4, .order = "tp-cp-xp-dp-pp"}), HasSubstr("unknown axis 'xp'"));
  EXPECT_THAT(refusal({.world = 4, .order = "tp-tp-ep-dp-pp"}), HasSubstr("contains the axis tp twice"));
  EXPECT_THAT(refusal({.world = 4, .order = "tp-cp"}), HasSubstr("omits dp"));
  EXPECT_THAT(refusal({.world = 4, .order = ""}), HasSubstr("unknown axis ''"));
  EXPECT_THAT(refusal({.world = 4, .tensor = int64_t{1} << 62, .context = 4}), HasSubstr("does not divide"));
  EXPECT_THROW(RankLayout({.world = 4}).coordinates(4), ConfigError);
}

}  // namespace
}  // namespace concord
