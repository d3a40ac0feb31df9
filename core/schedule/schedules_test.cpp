#include "core/schedule/schedules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/config_error.h"
#include "core/schedule/check.h"
#include "core/schedule/generators/generators.h"
#include "core/schedule/passes.h"
#include "core/schedule/schedule_csv.h"
#include "core/schedule/simulate.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;

std::string golden(const std::string& name) {
  std::ifstream file(std::string(CONCORD_GOLDEN) + "/schedules/" + name + ".csv");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Removes the empty cells, in which torch's ranks wait, and the reductions, which torch writes in some files.
std::string computations(const std::string& csv) {
  std::istringstream lines(csv);
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line);
    std::string row;
    for (std::string cell; std::getline(cells, cell, ',');) {
      if (cell.empty() || cell.find("REDUCE") != cell.npos) continue;
      row += (row.empty() ? "" : ",") + cell;
    }
    kept += row + "\n";
  }
  return kept;
}

std::string request_refusal(const ScheduleRequest& request) {
  try {
    make_schedule(request);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

Simulation priced(const ScheduleRequest& request, const ScheduleCosts& costs = {}) {
  const Schedule schedule = complete_schedule(make_schedule(request));
  check_schedule(schedule);
  return simulate(schedule, costs);
}

TEST(Schedules, GPipeIsTorchs) {
  EXPECT_EQ(schedule_csv(make_schedule({.kind = "gpipe", .pp = 4, .microbatches = 8})),
            computations(golden("gpipe_pp4_m8_v1")));
}

TEST(Schedules, InterleavedIsTorchsWhichTakesMegatronsOrder) {
  for (const auto& [pp, microbatches, vpp, group] :
       {std::array{2, 4, 3, 2}, {4, 8, 2, 4}, {4, 10, 2, 5}, {8, 32, 2, 8}}) {
    const Schedule ours = make_schedule(
        {.kind = "interleaved", .pp = pp, .microbatches = microbatches, .vpp = vpp, .microbatch_group_size = group});
    const std::string name =
        "interleaved1f1b_pp" + std::to_string(pp) + "_m" + std::to_string(microbatches) + "_v" + std::to_string(vpp);
    EXPECT_EQ(schedule_csv(ours), computations(golden(name))) << name;
  }
}

// torch numbers the forwards of the last rank from 1, so the first rows are compared.
TEST(Schedules, OneFOneBIsTorchsOnAllRanksButTheLast) {
  for (const auto& [pp, microbatches] : {std::pair{4, 8}, {8, 32}}) {
    const std::string torchs =
        computations(golden("1f1b_pp" + std::to_string(pp) + "_m" + std::to_string(microbatches) + "_v1"));
    const std::string ours = schedule_csv(make_schedule({.kind = "1f1b", .pp = pp, .microbatches = microbatches}));
    const size_t rows = ours.rfind('\n', ours.size() - 2);
    EXPECT_EQ(ours.substr(0, rows), torchs.substr(0, rows));
    EXPECT_EQ(ours.substr(rows + 1, 16), pp == 4 ? "3F0,3B0,3F1,3B1," : "7F0,7B0,7F1,7B1,");
  }
}

TEST(Schedules, OneFOneBOfTwoRanksAndThreeMicroBatchesIsTheTextbooks) {
  EXPECT_EQ(schedule_csv(make_schedule({.kind = "1f1b", .pp = 2, .microbatches = 3})),
            "0F0,0F1,0B0,0F2,0B1,0B2\n"
            "1F0,1B0,1F1,1B1,1F2,1B2\n");
}

TEST(Schedules, ChunksComeInMegatronsOrder) {
  const std::vector<generators::ChunkStep> steps =
      generators::chunk_steps({.pp = 2, .vpp = 2, .microbatches = 5, .group = 3});
  std::vector<int> chunks;
  std::vector<int> microbatches;
  for (const generators::ChunkStep& step : steps) {
    chunks.push_back(step.chunk);
    microbatches.push_back(step.microbatch);
  }
  EXPECT_THAT(microbatches, ElementsAre(0, 1, 2, 0, 1, 2, 3, 4, 3, 4));
  EXPECT_THAT(chunks, ElementsAre(0, 0, 0, 1, 1, 1, 0, 0, 1, 1));
}

// Megatron's table of (micro-batch, chunk) and its warm-up; backwards use the table with the chunks reversed.
TEST(Schedules, EveryGoldenOrderIsMegatrons) {
  std::ifstream file(std::string(CONCORD_GOLDEN) + "/layers/layers.json");
  const nlohmann::json all = nlohmann::json::parse(file);
  ASSERT_GE(all["orders"].size(), 10u);
  for (const nlohmann::json& entry : all["orders"]) {
    const int pp = entry["pp"];
    const int vpp = entry["vpp"];
    std::string expected;
    for (int rank = 0; rank < pp; ++rank) {
      const size_t warmup = entry["warmup"][static_cast<size_t>(rank)];
      const nlohmann::json& table = entry["table"];
      std::string row;
      const auto add = [&](char kind, int chunk, int microbatch) {
        if (!row.empty()) row += ',';
        row.append(std::to_string(chunk * pp + rank)).append(1, kind).append(std::to_string(microbatch));
      };
      for (size_t i = 0; i < table.size() + warmup; ++i) {
        if (i < table.size()) add('F', table[i][1], table[i][0]);
        if (i >= warmup) add('B', vpp - 1 - table[i - warmup][1].get<int>(), table[i - warmup][0]);
      }
      expected += row + "\n";
    }
    const Schedule ours = make_schedule({.kind = "interleaved",
                                         .pp = pp,
                                         .microbatches = entry["microbatches"],
                                         .vpp = vpp,
                                         .microbatch_group_size = entry["group"]});
    EXPECT_EQ(schedule_csv(ours), expected) << entry;
    check_schedule(complete_schedule(ours));
  }
}

// Warm-up 2 (pp - rank - 1) + (vpp - 1) group = 5 and 3 forwards, then one of each.
TEST(Schedules, InterleavedWithGroupsOfThreeRunsMegatronsTable) {
  const Schedule schedule =
      make_schedule({.kind = "interleaved", .pp = 2, .microbatches = 5, .vpp = 2, .microbatch_group_size = 3});
  EXPECT_EQ(schedule_csv(schedule),
            "0F0,0F1,0F2,2F0,2F1,2F2,2B0,0F3,2B1,0F4,2B2,2F3,0B0,2F4,0B1,0B2,2B3,2B4,0B3,0B4\n"
            "1F0,1F1,1F2,3F0,3B0,3F1,3B1,3F2,3B2,1F3,1B0,1F4,1B1,3F3,1B2,3F4,3B3,3B4,1B3,1B4\n");
  check_schedule(complete_schedule(schedule));
}

// The goals: pp 8, 32 micro-batches, F = B = W = 1, free transfers.
TEST(Schedules, BubblesAtEightRanksAndThirtyTwoMicroBatches) {
  const auto bubble = [](const char* kind) { return priced({.kind = kind, .pp = 8, .microbatches = 32}).bubble_ratio; };
  EXPECT_NEAR(bubble("gpipe"), 7.0 / 39, 1e-12);
  EXPECT_NEAR(bubble("1f1b"), 7.0 / 39, 1e-12);           // 17.9 %
  EXPECT_NEAR(bubble("interleaved"), 21.0 / 213, 1e-12);  // 9.86 %, two chunks
  EXPECT_NEAR(bubble("zb-h1"), 7.0 / 103, 1e-12);         // 6.80 %
  EXPECT_NEAR(bubble("zb-v"), 7.0 / 199, 1e-12);          // 3.52 %
  EXPECT_NEAR(bubble("forward-only"), 7.0 / 39, 1e-12);
}

TEST(Schedules, ZeroBubbleVHasNoIdleTimeWithinARankAndTheMemoryOfOneFOneB) {
  for (const int64_t pp : {2, 3, 4, 8, 16}) {
    for (const int64_t microbatches : {2 * pp, 2 * pp + 1, 4 * pp, 5 * pp - 1}) {
      const Simulation v = priced({.kind = "zb-v", .pp = pp, .microbatches = microbatches});
      EXPECT_DOUBLE_EQ(v.makespan, static_cast<double>(6 * microbatches + pp - 1)) << pp << " " << microbatches;
      EXPECT_EQ(v.device_idle_ratio, 0) << pp << " " << microbatches;
      EXPECT_THAT(v.peak_activations, Each(Le(2 * pp)));  // halves of a stage: pp whole ones, as 1f1b on its first rank
    }
  }
}

TEST(Schedules, ZeroBubbleH1WaitsOnlyWhileThePipelineFills) {
  for (const int64_t pp : {2, 3, 4, 8, 16}) {
    for (const int64_t microbatches : {pp, pp + 1, 2 * pp, 5 * pp - 1}) {
      const Simulation h1 = priced({.kind = "zb-h1", .pp = pp, .microbatches = microbatches});
      EXPECT_DOUBLE_EQ(h1.makespan, static_cast<double>(3 * microbatches + pp - 1)) << pp << " " << microbatches;
      EXPECT_THAT(h1.peak_activations, Each(Le(pp)));
    }
  }
}

TEST(Schedules, OursIsNoLongerThanTorchsZeroBubbleV) {
  for (const auto& [pp, microbatches] : {std::pair{4, 8}, {8, 32}}) {
    const Schedule torchs = parse_schedule_csv(
        golden("zbvzerobubble_pp" + std::to_string(pp) + "_m" + std::to_string(microbatches) + "_v2"), "torch", 2 * pp);
    const double theirs = simulate(torchs, {}).makespan;
    EXPECT_LE(priced({.kind = "zb-v", .pp = pp, .microbatches = microbatches}).makespan, theirs);
  }
}

TEST(Schedules, OneFOneBHoldsOneMicroBatchLessOnEveryNextRank) {
  EXPECT_THAT(priced({.kind = "1f1b", .pp = 4, .microbatches = 8}).peak_activations, ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(priced({.kind = "1f1b", .pp = 4, .microbatches = 2}).peak_activations, ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(priced({.kind = "gpipe", .pp = 2, .microbatches = 8}).peak_activations, ElementsAre(8, 8));
  EXPECT_THAT(priced({.kind = "interleaved", .pp = 2, .microbatches = 8, .vpp = 2}).peak_activations,
              ElementsAre(5, 3));
  EXPECT_THAT(priced({.kind = "forward-only", .pp = 2, .microbatches = 8}).peak_activations, ElementsAre(1, 1));
}

// Activations that wait for their weight gradient are still held.
TEST(Schedules, ZeroBubbleKindsUseTheirWholeLimit) {
  EXPECT_THAT(priced({.kind = "zb-h1", .pp = 4, .microbatches = 8}).peak_activations, ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(priced({.kind = "zb-v", .pp = 3, .microbatches = 8}).peak_activations, ElementsAre(6, 6, 6));
}

TEST(Schedules, EvaluationOfAModelPlacedInAVKeepsItsPlacement) {
  const Schedule evaluation =
      make_schedule({.kind = "forward-only", .pp = 4, .microbatches = 9, .placement = Placement::v});
  EXPECT_EQ(evaluation.rank_of_stage, make_schedule({.kind = "zb-v", .pp = 4, .microbatches = 9}).rank_of_stage);
  check_schedule(complete_schedule(evaluation));
  EXPECT_TRUE(is_forward_only(evaluation));
  // The last rank, where the v turns, never waits: 3 hops there, 2 forwards of each micro-batch, 3 hops back.
  EXPECT_DOUBLE_EQ(simulate(complete_schedule(evaluation), {}).makespan, 3 + 2 * 9 + 3);
}

TEST(Schedules, NamesMayBeWrittenWithUnderscores) {
  EXPECT_EQ(make_schedule({.kind = "zb_v", .pp = 2, .microbatches = 4}),
            make_schedule({.kind = "zb-v", .pp = 2, .microbatches = 4}));
  EXPECT_EQ(canonical_kind("interleaved_1f1b"), "interleaved");
}

TEST(Schedules, WhatCannotBeIsRefusedWithTheNumbers) {
  EXPECT_THAT(request_refusal({.kind = "zb-x"}),
              AllOf(HasSubstr("'zb-x'"), HasSubstr("gpipe, 1f1b, interleaved, zb-h1, zb-v, forward-only")));
  EXPECT_THAT(request_refusal({.pp = 0}), HasSubstr("pipeline_model_parallel_size is 0"));
  EXPECT_THAT(request_refusal({.pp = 5000}), HasSubstr("from 1 to 4096"));
  EXPECT_THAT(request_refusal({.pp = 2, .microbatches = 0}), HasSubstr("micro-batches is 0"));
  EXPECT_THAT(request_refusal({.pp = 2, .microbatches = -3}), HasSubstr("micro-batches is -3"));
  EXPECT_THAT(request_refusal({.pp = 2, .microbatches = 4, .vpp = 2}),
              AllOf(HasSubstr("1f1b has 1 chunk"), HasSubstr("size is 2")));
  EXPECT_THAT(request_refusal({.pp = 2, .microbatches = 4, .vpp = -1}), HasSubstr("size is -1"));
  EXPECT_THAT(request_refusal({.kind = "zb-v", .pp = 4, .microbatches = 8, .vpp = 3}),
              AllOf(HasSubstr("2 chunks"), HasSubstr("size is 3")));
  EXPECT_THAT(request_refusal({.kind = "interleaved", .pp = 1, .microbatches = 8, .vpp = 4}),
              AllOf(HasSubstr("4 chunks"), HasSubstr("but it is 1")));
  EXPECT_THAT(request_refusal({.kind = "zb-v", .pp = 1, .microbatches = 8}), HasSubstr(">= 2, but it is 1"));
  EXPECT_THAT(request_refusal({.kind = "interleaved", .pp = 4, .microbatches = 8, .vpp = 1}), HasSubstr("use 1f1b"));
  EXPECT_THAT(request_refusal({.kind = "interleaved", .pp = 8, .microbatches = 4}),
              AllOf(HasSubstr("at least 8"), HasSubstr("but got 4")));
  EXPECT_THAT(request_refusal({.kind = "interleaved", .pp = 4, .microbatches = 9}), HasSubstr("last group of 1,"));
  EXPECT_THAT(request_refusal({.kind = "interleaved", .pp = 4, .microbatches = 10}),
              AllOf(HasSubstr("10 micro-batches in groups of 4"), HasSubstr("last group of 2")));
  EXPECT_THAT(request_refusal({.kind = "interleaved", .pp = 4, .microbatches = 10, .microbatch_group_size = 3}),
              HasSubstr("from pipeline_model_parallel_size 4 to"));
  EXPECT_THAT(request_refusal({.kind = "interleaved", .pp = 4, .microbatches = 10, .microbatch_group_size = 11}),
              HasSubstr("micro-batches 10"));
  EXPECT_EQ(request_refusal({.kind = "interleaved", .pp = 4, .microbatches = 10, .microbatch_group_size = 5}),
            "accepted");
  EXPECT_EQ(request_refusal({.kind = "interleaved", .pp = 4, .microbatches = 10, .microbatch_group_size = 6}),
            "accepted");
  EXPECT_THAT(request_refusal({.kind = "1f1b", .pp = 4, .microbatches = 10, .microbatch_group_size = 4}),
              HasSubstr("only to schedule interleaved"));
  EXPECT_THAT(request_refusal({.kind = "1f1b", .pp = 4, .microbatches = 8, .placement = Placement::v}),
              HasSubstr("placement loop"));
  EXPECT_THAT(
      request_refusal({.kind = "forward-only", .pp = 4, .microbatches = 8, .vpp = 3, .placement = Placement::v}),
      HasSubstr("exactly 2"));
  EXPECT_THAT(request_refusal({.kind = "zb-h1", .pp = 4096, .microbatches = 1 << 24}), HasSubstr("exceed"));
}

}  // namespace
}  // namespace concord
