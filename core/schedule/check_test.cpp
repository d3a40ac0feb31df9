#include "core/schedule/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/config_error.h"
#include "core/schedule/passes.h"
#include "core/schedule/schedules.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Parses a schedule from "0F0 0B0 | 1F0 1B0"; a '+' before an action joins it to the previous one.
Schedule schedule_of(std::string_view text, std::vector<int> rank_of_stage, int microbatches) {
  Schedule schedule;
  schedule.kind = "test";
  schedule.rank_of_stage = std::move(rank_of_stage);
  schedule.microbatches = microbatches;
  schedule.ranks.emplace_back();
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word == "|") {
      schedule.ranks.emplace_back();
      continue;
    }
    const bool joined = word.starts_with('+');
    if (joined) word.remove_prefix(1);
    Action action = parse_action(word).value();
    action.joined = joined;
    schedule.ranks.back().push_back(action);
  }
  schedule.pp = static_cast<int>(schedule.ranks.size());
  schedule.vpp = static_cast<int>(schedule.rank_of_stage.size()) / schedule.pp;
  schedule.activation_limit.assign(schedule.ranks.size(), 100);
  return schedule;
}

std::string verdict(const Schedule& schedule) {
  try {
    check_schedule(schedule);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

std::string verdict_on(std::string_view text, int microbatches = 1, std::vector<int> rank_of_stage = {0, 1}) {
  return verdict(schedule_of(text, std::move(rank_of_stage), microbatches));
}

TEST(Check, AcceptsWhatCanRun) {
  EXPECT_EQ(verdict_on("0F0 0B0 | 1F0 1B0"), "accepted");
  EXPECT_EQ(verdict_on("0F0 0I0 0W0 | 1F0 1B0"), "accepted");
  EXPECT_EQ(verdict_on("0F0 | 1F0"), "accepted");
  EXPECT_EQ(verdict_on("0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD | 1RECV_F0 1F0 1B0 1SEND_B0"), "accepted");
  EXPECT_EQ(verdict_on("0F0 1F0 1B0 0B0", 1, {0, 0}), "accepted");
}

TEST(Check, AnActionOfNoStageMicroBatchOrOfAnotherRankIsNamed) {
  EXPECT_EQ(verdict_on("0F0 7F0 0B0 | 1F0 1B0"),
            "schedule test, rank 0, action 2 (7F0): unknown stage 7; stages are 0 to 1");
  EXPECT_EQ(verdict_on("0F0 0B0 | 1F3 1B0"),
            "schedule test, rank 1, action 1 (1F3): unknown micro-batch 3; micro-batches are 0 to 0");
  EXPECT_EQ(verdict_on("0F0 1F0 0B0 | 1B0"),
            "schedule test, rank 0, action 2 (1F0): stage 1 is on rank 1, not on rank 0");
}

TEST(Check, AnActionThatStandsTwiceIsNamed) {
  EXPECT_EQ(verdict_on("0F0 0F0 0B0 | 1F0 1B0"), "schedule test, rank 0, action 2 (0F0): duplicate action");
  EXPECT_THAT(verdict_on("0F0 0B0 | 1F0 1B0 1I0"),
              HasSubstr("action 3 (1I0): the backward of micro-batch 0 through stage 1 was already done"));
  EXPECT_THAT(verdict_on("0F0 0B0 | 1F0 1I0 1B0"), HasSubstr("action 3 (1B0): the backward"));
  EXPECT_THAT(verdict_on("0F0 0B0 0REDUCE_GRAD 0REDUCE_GRAD | 1F0 1B0"),
              HasSubstr("action 4 (0REDUCE_GRAD): duplicate action"));
}

TEST(Check, AnActionBeforeWhatItNeedsIsNamed) {
  EXPECT_EQ(verdict_on("0B0 0F0 | 1F0 1B0"),
            "schedule test, rank 0, action 1 (0B0): it needs 0F0, which does not precede it");
  EXPECT_THAT(verdict_on("0F0 0W0 0I0 | 1F0 1B0"), HasSubstr("action 2 (0W0): it needs 0I0"));
  EXPECT_THAT(verdict_on("0F0 0B0 0W0 | 1F0 1B0"), HasSubstr("action 3 (0W0): it needs 0I0"));
  EXPECT_THAT(verdict_on("1F0 0F0 1B0 0B0", 1, {0, 0}), HasSubstr("action 1 (1F0): it needs 0F0"));
  EXPECT_THAT(verdict_on("0F0 1F0 0B0 1B0", 1, {0, 0}), HasSubstr("action 3 (0B0): it needs 1B0 or 1I0"));
  EXPECT_THAT(verdict_on("0F0 0B0 0REDUCE_GRAD 0F1 0B1 | 1F0 1B0 1F1 1B1", 2),
              HasSubstr("weight gradients of only 1 of 2 micro-batches"));
}

TEST(Check, WhatIsMissingIsNamed) {
  EXPECT_EQ(verdict_on("0F0 0B0 0F1 0B1 | 1F0 1B0 1F1", 2),
            "schedule test, rank 1, at its end: micro-batch 1 is incomplete: rank 1 never runs 1B1");
  EXPECT_THAT(verdict_on("0F0 0I0 | 1F0 1B0"), HasSubstr("rank 0 never runs 0W0"));
  EXPECT_THAT(verdict_on("0F0 0F1 | 1F0", 2), HasSubstr("rank 1 never runs 1F1"));
}

TEST(Check, ActivationsBeyondTheLimitAreNamed) {
  Schedule schedule = make_schedule({.kind = "gpipe", .pp = 2, .microbatches = 4});
  schedule.activation_limit = {4, 3};
  EXPECT_EQ(verdict(schedule),
            "schedule gpipe, rank 1, action 4 (1F3): rank 1 would hold the activations of 4 forwards; its limit is 3");
  Schedule split = make_schedule({.kind = "zb-h1", .pp = 4, .microbatches = 8});
  split.activation_limit.assign(4, 3);  // an activation lives until its weight gradient
  EXPECT_THAT(verdict(split), HasSubstr("its limit is 3"));
}

TEST(Check, TransfersHaveToBeWhereTheyAreNeeded) {
  EXPECT_THAT(verdict_on("0F0 0SEND_F0 0RECV_B0 0B0 | 1F0 1RECV_F0 1B0 1SEND_B0"),
              HasSubstr("rank 1, action 1 (1F0): it needs 1RECV_F0"));
  EXPECT_THAT(verdict_on("0SEND_F0 0F0 0RECV_B0 0B0 | 1RECV_F0 1F0 1B0 1SEND_B0"),
              HasSubstr("action 1 (0SEND_F0): it needs 0F0"));
  EXPECT_THAT(verdict_on("0F0 0SEND_F0 0RECV_B0 0B0 | 1RECV_F0 1F0 1SEND_B0 1B0"),
              HasSubstr("action 3 (1SEND_B0): it needs 1B0 or 1I0"));
  EXPECT_THAT(verdict_on("0F0 0SEND_F0 0RECV_B0 0B0 | 1RECV_F0 1F0 1B0"), HasSubstr("rank 1 never runs 1SEND_B0"));
  EXPECT_THAT(verdict_on("0F0 0RECV_B0 0B0 | 1RECV_F0 1F0 1B0 1SEND_B0"), HasSubstr("rank 0 never runs 0SEND_F0"));
  EXPECT_THAT(verdict_on("0F0 0SEND_B0 0B0 | 1F0 1B0"), HasSubstr("stage 0 is at the end of the model"));
  EXPECT_THAT(verdict_on("0F0 1F0 0SEND_F0 1B0 0B0", 1, {0, 0}), HasSubstr("stages 0 and 1 are both on rank 0"));
  EXPECT_THAT(verdict_on("0F0 +0SEND_F0 0RECV_B0 0B0 | 1RECV_F0 1F0 1B0 1SEND_B0"),
              HasSubstr("action 2 (0SEND_F0): only a transfer directly after"));
}

TEST(Check, AChannelKeepsItsOrder) {
  EXPECT_THAT(
      verdict_on("0F0 0F1 0SEND_F0 +0SEND_F1 | 1RECV_F1 +1RECV_F0 1F0 1F1", 2),
      AllOf(HasSubstr("rank 1, action 1 (1RECV_F1)"), HasSubstr("receive 1 from rank 0"), HasSubstr("is 0SEND_F0")));
  EXPECT_EQ(verdict_on("0F0 0F1 0SEND_F0 +0SEND_F1 | 1RECV_F0 +1RECV_F1 1F0 1F1", 2), "accepted");
}

// Two sends that wait for each other: the reason for Megatron's batched p2p and for batches here.
TEST(Check, SendsThatWaitForEachOtherAreADeadlock) {
  const std::string first = "0F0 0SEND_F0 0F1 ";
  const std::string second = " | 1RECV_F0 1F0 1B0 ";
  const std::string verdict =
      verdict_on(first + "0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1" + second + "1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1", 2);
  EXPECT_EQ(verdict,
            "schedule test, rank 0, action 4 (0SEND_F1): deadlock: rank 0 waits in action 4 (0SEND_F1) for 1RECV_F1 of "
            "rank 1, "
            "rank 1 waits in action 4 (1SEND_B0) for 0RECV_B0 of rank 0");
  EXPECT_EQ(
      verdict_on(first + "0SEND_F1 +0RECV_B0 0B0 0RECV_B1 0B1" + second + "1SEND_B0 +1RECV_F1 1F1 1B1 1SEND_B1", 2),
      "accepted");
  EXPECT_EQ(verdict_on(first + "0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1" + second + "1RECV_F1 1SEND_B0 1F1 1B1 1SEND_B1", 2),
            "accepted");
}

TEST(Check, ComputationsThatWaitForEachOtherAreADeadlock) {
  // Rank 0 wants the gradient of micro-batch 1 before it has sent micro-batch 0; rank 1 takes 0 first.
  EXPECT_THAT(verdict_on("0F1 0B1 0F0 0B0 | 1F0 1B0 1F1 1B1", 2),
              AllOf(HasSubstr("rank 0, action 2 (0B1)"), HasSubstr("for 1B1 of rank 1"),
                    HasSubstr("rank 1 waits in action 1 (1F0) for 0F0 of rank 0")));
}

TEST(Check, ALongCircleIsShownInPart) {
  Schedule schedule = make_schedule({.kind = "1f1b", .pp = 64, .microbatches = 64});
  schedule.activation_limit.assign(64, 64);
  // The first rank wants micro-batch 0 back before it sends 1, the last wants 1 before it gives 0 back.
  std::swap(schedule.ranks.back()[1], schedule.ranks.back()[2]);
  auto& first = schedule.ranks.front();
  std::rotate(first.begin() + 1, first.begin() + 64, first.begin() + 65);
  EXPECT_THAT(verdict(schedule), AllOf(HasSubstr("deadlock"), HasSubstr("rank 0 waits in action 2 (0B0)")));
  EXPECT_LT(verdict(schedule).size(), 1200u);
}

TEST(Check, SizesThatContradictEachOtherAreRefused) {
  Schedule schedule = make_schedule({.kind = "1f1b", .pp = 2, .microbatches = 2});
  schedule.vpp = 2;
  EXPECT_THAT(verdict(schedule), HasSubstr("is inconsistent"));
  schedule.vpp = 1;
  schedule.rank_of_stage[1] = 2;
  EXPECT_THAT(verdict(schedule), HasSubstr("stage 1 is on rank 2"));
}

}  // namespace
}  // namespace concord
