#include "core/schedule/step_schedule.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/base/config_error.h"
#include "core/schedule/passes.h"
#include "core/schedule/schedule_csv.h"
#include "core/schedule/simulate.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StepScheduleTest : public ::testing::Test {
 protected:
  ~StepScheduleTest() override { std::filesystem::remove(path_); }
  std::string file(const std::string& text) {
    std::ofstream(path_) << text;
    return path_;
  }
  static std::string refusal_of(const ScheduleRequest& request) {
    try {
      step_schedule(request);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "not refused";
  }

 private:
  std::string path_ =
      (std::filesystem::temp_directory_path() / ("concord-step-" + std::to_string(getpid()) + ".csv")).string();
};

TEST_F(StepScheduleTest, AKindIsCompleted) {
  const ScheduleRequest request{.kind = "zb-v", .pp = 4, .microbatches = 8};
  EXPECT_EQ(step_schedule(request), complete_schedule(make_schedule(request)));
}

// With its transfers, without them, or as it runs: the same program.
TEST_F(StepScheduleTest, AFileIsCompletedByWhatItLacks) {
  const Schedule computations = make_schedule({.kind = "1f1b", .pp = 2, .microbatches = 3});
  const Schedule wanted = complete_schedule(computations);
  for (const Schedule& written : {computations, add_communication(computations), wanted}) {
    const Schedule got = step_schedule({.kind = file(schedule_csv(written)), .pp = 2, .microbatches = 3});
    EXPECT_TRUE(has_transfers(got));
    EXPECT_EQ(got.ranks[0].size(), wanted.ranks[0].size());
    EXPECT_EQ(got.ranks[1].size(), wanted.ranks[1].size());
  }
  EXPECT_EQ(complete_schedule(wanted), wanted);
}

TEST_F(StepScheduleTest, AFileOfOtherSizesIsRefusedWithBothNumbers) {
  const std::string path = file("0F0,0B0\n1F0,1B0\n");
  EXPECT_THAT(refusal_of({.kind = path, .pp = 4, .microbatches = 1}),
              AllOf(HasSubstr("has 2 ranks"), HasSubstr("pipeline_model_parallel_size is 4")));
  EXPECT_THAT(refusal_of({.kind = path, .pp = 2, .microbatches = 7}),
              AllOf(HasSubstr("has 1 micro-batches"), HasSubstr("is 7")));
  EXPECT_THAT(refusal_of({.kind = path, .pp = 2, .microbatches = 1, .vpp = 2}), HasSubstr("has 1 chunks per rank"));
  EXPECT_EQ(refusal_of({.kind = path, .pp = 2, .microbatches = 1}), "not refused");
}

TEST_F(StepScheduleTest, StagesThatLieInNoKnownWayAreRefused) {
  EXPECT_THAT(refusal_of({.kind = file("0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0\n"), .pp = 2, .microbatches = 1}),
              HasSubstr("neither as a loop"));
}

TEST_F(StepScheduleTest, EvaluationHasTheStagesOfTraining) {
  for (const char* kind : {"1f1b", "interleaved", "zb-v"}) {
    const Schedule training = step_schedule({.kind = kind, .pp = 4, .microbatches = 8});
    const Schedule evaluation = evaluation_schedule(training, 3);
    EXPECT_EQ(evaluation.rank_of_stage, training.rank_of_stage);
    EXPECT_EQ(evaluation.microbatches, 3);
    EXPECT_TRUE(is_forward_only(evaluation));
    EXPECT_TRUE(has_transfers(evaluation));
  }
}

TEST(StepSchedule, OfASingleMicroBatchGoesThroughAllStagesAndBack) {
  const Schedule there = single_schedule(Placement::v, 2, 2, /*backward=*/false);
  EXPECT_TRUE(is_forward_only(there));
  EXPECT_EQ(stages_of(there, 0), (std::vector<int>{0, 3}));
  for (const Placement placement : {Placement::loop, Placement::v}) {
    const Schedule both = single_schedule(placement, 3, 2, /*backward=*/true);
    EXPECT_EQ(both.microbatches, 1);
    EXPECT_EQ(placement_of(both), placement);
    EXPECT_EQ(simulate(both, {.forward = 1, .backward = 1, .weight = 1}).makespan, 6 * 3);
  }
  EXPECT_EQ(single_schedule(Placement::loop, 1, 1, true).ranks[0].size(), 3u) << "0F0, 0B0, 0REDUCE_GRAD";
}

}  // namespace
}  // namespace concord
