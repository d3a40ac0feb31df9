#include "core/schedule/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/schedule/check.h"
#include "core/schedule/schedule_csv.h"
#include "core/schedule/schedules.h"
#include "core/schedule/simulate.h"

namespace concord {
namespace {

using ::testing::HasSubstr;

// Sends follow the computation that produces the value; receives precede the computation that runs when the value
// arrives (rank 1 receives its second input while it computes on the first).
TEST(Passes, TransfersOfOneFOneB) {
  EXPECT_EQ(schedule_csv(add_communication(make_schedule({.kind = "1f1b", .pp = 2, .microbatches = 2}))),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

// The middle rank of three receives from both sides at the same time.
TEST(Passes, TransfersOfTheSameTimeAreOneBatch) {
  const std::string csv = schedule_csv(add_communication(make_schedule({.kind = "zb-h1", .pp = 3, .microbatches = 6})));
  EXPECT_THAT(csv, HasSubstr(",1RECV_F3+1RECV_B2,"));
}

TEST(Passes, NothingIsTransferredWhereTheVTurns) {
  const std::string csv = schedule_csv(add_communication(make_schedule({.kind = "zb-v", .pp = 2, .microbatches = 4})));
  EXPECT_EQ(csv.find("1SEND_F"), csv.npos);
  EXPECT_EQ(csv.find("2RECV_F"), csv.npos);
  EXPECT_EQ(csv.find("2SEND_B"), csv.npos);
  EXPECT_NE(csv.find("0SEND_F0"), csv.npos);
  EXPECT_NE(csv.find("3RECV_F0"), csv.npos);
}

TEST(Passes, AReductionStandsBehindTheLastWeightGradientOfItsStage) {
  EXPECT_EQ(schedule_csv(add_reductions(make_schedule({.kind = "1f1b", .pp = 2, .microbatches = 2}))),
            "0F0,0F1,0B0,0B1,0REDUCE_GRAD\n"
            "1F0,1B0,1F1,1B1,1REDUCE_GRAD\n");
  EXPECT_EQ(schedule_csv(add_reductions(make_schedule({.kind = "interleaved", .pp = 2, .microbatches = 2}))),
            "0F0,0F1,2F0,2F1,2B0,2B1,2REDUCE_GRAD,0B0,0B1,0REDUCE_GRAD\n"
            "1F0,1F1,3F0,3B0,3F1,3B1,3REDUCE_GRAD,1B0,1B1,1REDUCE_GRAD\n");
  const Schedule evaluation = make_schedule({.kind = "forward-only", .pp = 2, .microbatches = 2});
  EXPECT_EQ(add_reductions(evaluation), evaluation);
}

TEST(Passes, AReductionDoesNotStandBeforeTheLastSend) {
  const std::string csv = schedule_csv(complete_schedule(make_schedule({.kind = "1f1b", .pp = 2, .microbatches = 2})));
  EXPECT_NE(csv.find("1B1,1SEND_B1,1REDUCE_GRAD\n"), csv.npos) << csv;
}

// One ordered channel for all of a rank's transfers costs nothing compared with independent transfers.
TEST(Passes, TheOrderOfTransfersLengthensNoSchedule) {
  for (const std::string_view kind : schedule_kinds()) {
    for (const int64_t pp : {2, 3, 4, 8}) {
      const Schedule computations = make_schedule({.kind = std::string(kind), .pp = pp, .microbatches = 4 * pp});
      const Schedule complete = complete_schedule(computations);
      for (const double comm : {0.0, 0.02, 0.1}) {
        EXPECT_NEAR(simulate(complete, {.comm = comm}).makespan, simulate(computations, {.comm = comm}).makespan, 1e-9)
            << kind << " " << pp << " " << comm;
      }
    }
  }
}

TEST(Passes, OneRankHasNothingToTransfer) {
  const Schedule schedule = make_schedule({.kind = "1f1b", .pp = 1, .microbatches = 3});
  EXPECT_EQ(add_communication(schedule), schedule);
  check_schedule(complete_schedule(schedule));
}

}  // namespace
}  // namespace concord
