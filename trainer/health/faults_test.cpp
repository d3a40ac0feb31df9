#include "trainer/health/faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/base/config_error.h"

namespace concord {
namespace {

TEST(PlanFaults, IsAFunctionOfTheSeed) {
  const auto plan = [](uint64_t seed) { return plan_faults(seed, 20, all_fault_kinds(), 4, 100); };
  EXPECT_EQ(plan(3), plan(3));
  EXPECT_NE(plan(3), plan(4));
  std::set<int64_t> ranks, steps;
  std::set<FaultKind> kinds;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    int64_t last = 1;
    for (const Fault& fault : plan(seed)) {
      EXPECT_GT(fault.step, last);  // one per step, none in the first
      last = fault.step;
      ranks.insert(fault.rank);
      kinds.insert(fault.kind);
      steps.insert(fault.step);
    }
    EXPECT_LE(last, 100);
  }
  EXPECT_EQ(ranks, (std::set<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(kinds.size(), all_fault_kinds().size());
  EXPECT_GT(steps.size(), 90U);
  EXPECT_THROW(plan_faults(1, 10, all_fault_kinds(), 4, 10), ConfigError);
}

TEST(PlanFaults, ByTimeComesOneInEachPeriod) {
  const std::vector<Fault> plan = plan_faults_by_time(3, 50, all_fault_kinds(), 4, 60000);
  EXPECT_EQ(plan, plan_faults_by_time(3, 50, all_fault_kinds(), 4, 60000));
  ASSERT_EQ(plan.size(), 50U);
  for (size_t i = 0; i < plan.size(); ++i) {
    EXPECT_EQ(plan[i].milliseconds / 60000, static_cast<int64_t>(i));
    EXPECT_EQ(plan[i].step, 0);
  }
}

TEST(ParseFaults, ReadsWhatIsWritten) {
  const std::vector<Fault> faults = plan_faults(9, 30, all_fault_kinds(), 8, 1000);
  EXPECT_EQ(parse_faults(to_string(faults)), faults);
  const std::vector<Fault> by_time = plan_faults_by_time(9, 30, all_fault_kinds(), 8, 1000);
  EXPECT_EQ(parse_faults(to_string(by_time)), by_time);
  EXPECT_TRUE(parse_faults("").empty());
  for (const char* text :
       {"kill", "kill:", "kill:1", "kill:1@2", "kill:1@2+", "kill:1@2+3x", "burn:1@2+3", ",", "kill:-1@2+3",
        "kill:1@2+3,", "kill:1@2ms", "kill:1@ms+3", "kill:1@2s+3", "kill:99999999999999999999@1+1"}) {
    EXPECT_THROW(parse_faults(text), ConfigError) << text;
  }
  EXPECT_THAT(parse_fault_kinds("kill,nan"), ::testing::ElementsAre(FaultKind::kill, FaultKind::nan));
  EXPECT_THROW(parse_fault_kinds(""), ConfigError);
}

}  // namespace
}  // namespace concord
