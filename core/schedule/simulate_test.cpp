#include "core/schedule/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/base/config_error.h"
#include "core/schedule/passes.h"
#include "core/schedule/schedules.h"

namespace concord {
namespace {

using ::testing::HasSubstr;

TEST(Simulate, OneFOneBWithUnequalCostsIsWhatTheFormulaSays) {
  // (m + pp - 1) (F + B + W) for free transfers.
  const Schedule schedule = complete_schedule(make_schedule({.kind = "1f1b", .pp = 4, .microbatches = 6}));
  const Simulation simulation = simulate(schedule, {.forward = 1, .backward = 1.5, .weight = 0.5});
  EXPECT_DOUBLE_EQ(simulation.makespan, 9 * 3);
  EXPECT_DOUBLE_EQ(simulation.bubble_ratio, 3.0 / 9);
}

TEST(Simulate, TransfersAddToThePathOfAMicroBatch) {
  // One micro-batch through three ranks and back: 3 F + 3 (B + W) and 4 transfers.
  const Schedule schedule = complete_schedule(make_schedule({.kind = "1f1b", .pp = 3, .microbatches = 1}));
  EXPECT_DOUBLE_EQ(simulate(schedule, {.comm = 0.25}).makespan, 3 + 6 + 1);
}

TEST(Simulate, TransfersOverlapWithComputations) {
  // Rank 0 sends micro-batch i while it computes i + 1: in gpipe's forwards one transfer per link is not hidden.
  const Schedule schedule = complete_schedule(make_schedule({.kind = "forward-only", .pp = 4, .microbatches = 16}));
  EXPECT_DOUBLE_EQ(simulate(schedule, {.comm = 0.25}).makespan, 16 + 3 + 3 * 0.25);
}

// By hand, F = 1, B = 2 (both halves), a transfer 0.5:
//   rank 0:  F0 0-1                     B0 5-7
//   rank 1:         F0 1.5-2.5 B0 2.5-4.5
TEST(Simulate, EveryActionHasItsTime) {
  const Schedule schedule = add_communication(make_schedule({.kind = "1f1b", .pp = 2, .microbatches = 1}));
  const Simulation simulation = simulate(schedule, {.comm = 0.5});
  const auto at = [&](size_t rank, const char* text) {
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      if (to_string(schedule.ranks[rank][i]) == text)
        return std::pair(simulation.times[rank][i].start, simulation.times[rank][i].end);
    }
    return std::pair(-1.0, -1.0);
  };
  EXPECT_EQ(at(0, "0F0"), std::pair(0.0, 1.0));
  EXPECT_EQ(at(0, "0SEND_F0"), std::pair(1.0, 1.5));
  EXPECT_EQ(at(1, "1RECV_F0"), std::pair(1.0, 1.5));
  EXPECT_EQ(at(1, "1F0"), std::pair(1.5, 2.5));
  EXPECT_EQ(at(1, "1B0"), std::pair(2.5, 4.5));
  EXPECT_EQ(at(0, "0RECV_B0"), std::pair(4.5, 5.0));
  EXPECT_EQ(at(0, "0B0"), std::pair(5.0, 7.0));
  EXPECT_DOUBLE_EQ(simulation.makespan, 7);
  EXPECT_DOUBLE_EQ(simulation.bubble_ratio, 4.0 / 7);
  EXPECT_DOUBLE_EQ(simulation.device_idle_ratio, 4.0 / 7);  // rank 0 waits from 1 to 5
}

TEST(Simulate, BlockingTransfersLeaveNothingBesideThem) {
  const Schedule schedule = add_communication(make_schedule({.kind = "gpipe", .pp = 2, .microbatches = 4}));
  const Walk blocking = walk(schedule, {.comm = 0.5}, /*blocking=*/true);
  EXPECT_TRUE(blocking.stuck.empty());
  double end = 0;
  for (const auto& times : blocking.times) end = std::max(end, times.back().end);
  EXPECT_GT(end, simulate(schedule, {.comm = 0.5}).makespan);
}

TEST(Simulate, CostsThatAreNoTimesAreRefused) {
  const Schedule schedule = make_schedule({.kind = "1f1b", .pp = 2, .microbatches = 2});
  const auto refusal = [&](const ScheduleCosts& costs) -> std::string {
    try {
      simulate(schedule, costs);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal({.forward = 0}), HasSubstr("cost_f is 0"));
  EXPECT_THAT(refusal({.backward = -1}), HasSubstr("cost_b is -1"));
  EXPECT_THAT(refusal({.weight = std::numeric_limits<double>::quiet_NaN()}), HasSubstr("cost_w is nan"));
  EXPECT_THAT(refusal({.comm = std::numeric_limits<double>::infinity()}), HasSubstr("cost_comm is inf"));
  EXPECT_EQ(refusal({.comm = 0}), "accepted");
}

}  // namespace
}  // namespace concord
