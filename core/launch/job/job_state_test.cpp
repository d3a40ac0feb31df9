#include "core/launch/job/job_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using EventKind = JobEvent::Kind;

class FewerRanksOfAJob : public ::testing::Test {
 protected:
  FewerRanksOfAJob() {
    for (const int node : {0, 1}) step({.kind = EventKind::joined, .node = node});
  }
  void step(JobEvent event) {
    if (event.kind == EventKind::failed || event.kind == EventKind::ended) event.attempt = state_.policy.attempts;
    JobStep step = next_step(job_rules(), settings_, std::move(state_), event);
    state_ = std::move(step.state);
  }
  // A rank fails; all end.
  void fail(int node, int slot, int exit_code) {
    const NodeEnd end{.has_failed = true, .failed_slot = slot, .exit_code = exit_code};
    step({.kind = EventKind::failed, .node = node, .end = end});
    step({.kind = EventKind::ended, .node = node, .end = end});
    step({.kind = EventKind::ended, .node = 1 - node});
  }
  const std::vector<NodeShare>& shares() const { return state_.assignment.nodes; }

  const JobSettings settings_{.slots = {2, 2}, .worlds = {4, 2, 1}, .max_restarts = 3};
  JobState state_ = first_state(settings_);
};

TEST_F(FewerRanksOfAJob, ADeviceThatIsAtFaultIsLeftOut) {
  EXPECT_THAT(shares(), ElementsAre(NodeShare{0, {0, 1}}, NodeShare{2, {0, 1}}));
  fail(0, 0, kExitBadDevice);
  EXPECT_EQ(state_.phase, JobPhase::running);
  EXPECT_THAT(shares(), ElementsAre(NodeShare{0, {1}}, NodeShare{1, {0}}));
  fail(1, 0, kExitBadDevice);
  EXPECT_THAT(shares(), ElementsAre(NodeShare{0, {1}}, NodeShare{1, {1}}));
  fail(0, 1, kExitBadDevice);  // machine 0, which serves the store, has none left
  EXPECT_EQ(state_.phase, JobPhase::over);
  EXPECT_EQ(state_.exit_code, kExitBadDevice);
}

TEST_F(FewerRanksOfAJob, AnyOtherFailureIsNoReasonToLeaveARankOut) {
  fail(0, 0, 1);
  EXPECT_EQ(state_.assignment.world, 4);
}

TEST_F(FewerRanksOfAJob, GrowsAtTheNextRestartAfterAMachineHasComeBack) {
  step({.kind = EventKind::lost, .node = 1});
  step({.kind = EventKind::ended, .node = 0});
  EXPECT_EQ(state_.phase, JobPhase::gathering);
  step({.kind = EventKind::waited});
  EXPECT_EQ(state_.phase, JobPhase::gathering);  // until its ranks must have exited
  step({.kind = EventKind::fence_over, .node = 1});
  EXPECT_EQ(state_.assignment.world, 2);
  step({.kind = EventKind::joined, .node = 1});
  EXPECT_EQ(state_.assignment.world, 2);
  EXPECT_EQ(state_.phase, JobPhase::running);
  const NodeEnd end{.has_failed = true, .failed_slot = 0};
  step({.kind = EventKind::ended, .node = 0, .end = end});
  EXPECT_EQ(state_.phase, JobPhase::running);
  EXPECT_EQ(state_.assignment.world, 4);
}

TEST_F(FewerRanksOfAJob, RanksThatBelongTogetherStayOnOneMachine) {
  const JobSettings settings{.slots = {4, 4}, .worlds = {8, 6, 4, 2}, .colocated_ranks = 2};
  std::vector<NodeView> nodes(2);
  for (NodeView& node : nodes) node.phase = NodePhase::ready;
  nodes[0].bad_slots = {2};
  const Assignment assignment = assign_ranks(settings, nodes).value();
  EXPECT_EQ(assignment.world, 6);
  EXPECT_THAT(assignment.nodes, ElementsAre(NodeShare{0, {0, 1}}, NodeShare{2, {0, 1, 2, 3}}));
}

// Two machines of a job whose leader was lost after attempt 4.
class ContinuedJob : public ::testing::Test {
 protected:
  void join(int node, int last_attempt, int64_t kept_step = -1) {
    state_ = next_step(job_rules(), settings_, std::move(state_),
                       {.kind = EventKind::joined, .node = node, .last_attempt = last_attempt, .kept_step = kept_step})
                 .state;
  }
  const JobSettings settings_{.slots = {1, 1}, .worlds = {2}, .max_restarts = 1};
  JobState state_ = first_state(settings_);
};

TEST_F(ContinuedJob, StartsTheAttemptAfterTheLastThatALauncherKnows) {
  join(0, -1);
  join(1, 4, 20);
  EXPECT_EQ(state_.phase, JobPhase::running);
  EXPECT_EQ(state_.policy.attempts, 5);
  EXPECT_EQ(state_.end.kept_step, 20);
}

TEST_F(ContinuedJob, WaitsForRanksOfMachinesThatTheLeaderBeforeKnew) {
  state_ = first_state(settings_, 4);
  join(1, 4);
  join(0, -1);  // a new launcher, which has run no ranks there
  EXPECT_EQ(state_.phase, JobPhase::gathering);
  state_ = next_step(job_rules(), settings_, std::move(state_), {.kind = EventKind::fence_over, .node = 0}).state;
  EXPECT_EQ(state_.phase, JobPhase::running);
  EXPECT_EQ(state_.policy.attempts, 5);
}

// The launcher that replaced it in attempt 1 may still run ranks.
TEST_F(ContinuedJob, ALauncherOfAnEarlierAttemptDoesNotEndTheFence) {
  join(0, 3);
  join(1, 3);
  ASSERT_EQ(state_.policy.attempts, 4);
  const auto step = [&](const JobEvent& event) {
    state_ = next_step(job_rules(), settings_, std::move(state_), event).state;
  };
  step({.kind = EventKind::lost, .node = 1});
  step({.kind = EventKind::ended, .node = 0, .attempt = 4});
  join(1, 3);
  EXPECT_EQ(state_.phase, JobPhase::gathering);
  step({.kind = EventKind::lost, .node = 1});
  join(1, 4);
  EXPECT_EQ(state_.phase, JobPhase::running);
}

TEST(JobState, RulesArePrintedAndDrawn) {
  EXPECT_THAT(rules_table(job_rules()), HasSubstr("  running    trouble       stopping   stop\n"));
  EXPECT_THAT(rules_mermaid(job_rules()), HasSubstr("    job_running --> job_stopping: trouble / stop\n"));
  EXPECT_THAT(rules_mermaid(job_rules()), HasSubstr("    machine_running --> machine_absent: lost / fence\n"));
  EXPECT_THAT(rules_mermaid(job_rules()), HasSubstr("    spare_ready --> spare_absent: taken / hand_over\n"));
}

}  // namespace
}  // namespace concord
