// Every order of events of small jobs, by the rules of job_state.h.
#include "core/launch/job/job_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace concord::testing_job {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(JobState, EveryOrderOfEventsOfTwoMachinesWithTwoFaults) {
  Model model = model_of({.slots = 1});
  EXPECT_EQ(model.check(), "");
  EXPECT_GT(model.states(), 20'000u);
  EXPECT_THAT(model.exit_codes(), ElementsAre(-1, 0, 1, 75, 143));
  EXPECT_THAT(model.attempts(), ElementsAre(0, 1, 2));
  EXPECT_THAT(model.worlds(), ElementsAre(2));
  EXPECT_EQ(model_of({.slots = 2, .faults = 1}).check(), "");
}

// The others elect another leader. Nothing is trained twice, whoever is cut off, and for how long.
TEST(JobState, EveryOrderOfEventsOfThreeMachinesWithOneFault) {
  Model model = model_of({.nodes = 3, .slots = 1, .faults = 1, .restarts = 0, .fewer = true, .patient = true});
  EXPECT_EQ(model.check(), "");
  EXPECT_TRUE(model.codes_of_elected().contains(0));
}

TEST(JobState, EveryOrderOfEventsWithFewerRanks) {
  Model model = model_of({.slots = 1, .fewer = true});
  EXPECT_EQ(model.check(), "");
  EXPECT_THAT(model.worlds(), ElementsAre(1, 2));
  EXPECT_EQ(model_of({.slots = 1, .faults = 1, .fewer = true, .twins = true}).check(), "");
}

TEST(JobState, EveryOrderOfEventsWithALeaderThatIsStartedAgain) {
  for (const bool fewer : {false, true}) {
    Model model = model_of({.slots = 1, .faults = 1, .restarts = 0, .leaders = 1, .fewer = fewer});
    EXPECT_EQ(model.check(), "");
    EXPECT_TRUE(model.codes_of_returned().contains(0));
  }
  // One of the launchers may still have ranks when the leader that is back begins; and others may have elected one.
  Model model = model_of({.nodes = 3, .slots = 1, .faults = 1, .restarts = 0, .leaders = 1, .patient = true});
  EXPECT_EQ(model.check(), "");
  EXPECT_TRUE(model.codes_of_elected().contains(0));
}

// Without one of its rows the job hangs, runs twice at once or leaves something: the model finds it; no row is idle.
TEST(JobState, NoRowCanBeLeftOut) {
  const JobRules& all = job_rules();
  const auto found = [](const JobRules& broken) {
    std::string problem;
    for (const ModelCase& size :
         {ModelCase{.slots = 1, .faults = 1, .restarts = 0, .patient = true}, ModelCase{.slots = 1, .patient = true},
          ModelCase{.slots = 1, .faults = 1},
          ModelCase{.slots = 1, .faults = 1, .restarts = 0, .leaders = 1, .patient = true},
          ModelCase{.nodes = 3, .slots = 1, .faults = 1, .restarts = 0, .fewer = true, .patient = true}}) {
      Model model = model_of(size, broken);
      problem += model.check();
      if (!model.exit_codes().contains(0)) problem += "no run succeeds";
      if (size.nodes > 2 && !model.codes_of_elected().contains(0)) problem += "no elected leader succeeds";
      if (size.leaders > 0 && !model.codes_of_returned().contains(0)) problem += "no leader succeeds that has returned";
      if (!problem.empty()) break;
    }
    return problem;
  };
  EXPECT_EQ(found(all), "");
  for (size_t i = 0; i < all.node.size(); ++i) {
    JobRules broken = all;
    broken.node.erase(broken.node.begin() + static_cast<int64_t>(i));
    EXPECT_NE(found(broken), "") << to_string(all.node[i].phase) << " " << to_string(all.node[i].event);
  }
  for (size_t i = 0; i < all.job.size(); ++i) {
    JobRules broken = all;
    broken.job.erase(broken.job.begin() + static_cast<int64_t>(i));
    EXPECT_NE(found(broken), "") << to_string(all.job[i].phase) << " " << to_string(all.job[i].when);
  }
  for (size_t i = 0; i < all.member.size(); ++i) {
    JobRules broken = all;
    broken.member.erase(broken.member.begin() + static_cast<int64_t>(i));
    EXPECT_NE(found(broken), "") << to_string(all.member[i].phase) << " " << to_string(all.member[i].event);
  }
}

TEST(JobState, FindsAnAttemptThatStartsTooEarly) {
  JobRules broken = job_rules();
  for (NodeRow& row : broken.node) row.fence = false;
  EXPECT_THAT(model_of({.slots = 1, .faults = 1, .twins = true}, broken).check(),
              HasSubstr("two attempts run at once"));
  broken = job_rules();
  for (NodeRow& row : broken.node) {
    if (row.event == NodeEvent::failed) row.next = NodePhase::ready;  // does not wait for its end
  }
  EXPECT_NE(model_of({.slots = 2}, broken).check(), "");
}

}  // namespace
}  // namespace concord::testing_job
