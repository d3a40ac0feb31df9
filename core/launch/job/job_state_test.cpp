#include "core/launch/job/job_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using EventKind = JobEvent::Kind;

// --- who may go on

TEST(Quorum, IsMoreThanHalfOrHalfWithTheLeader) {
  const Electorate three{.attempt = 0, .now = {.leader = 1, .launchers = {1, 2, 3}}};
  EXPECT_TRUE(has_quorum(three, {2, 3}));
  EXPECT_FALSE(has_quorum(three, {1}));
  EXPECT_FALSE(has_quorum(three, {2, 4, 5}));  // strangers have no vote
  const Electorate two{.attempt = 0, .now = {.leader = 1, .launchers = {1, 2}}};
  EXPECT_TRUE(has_quorum(two, {1}));
  EXPECT_FALSE(has_quorum(two, {2}));
}

TEST(Quorum, IsOneOfTheVotersBeforeAsWell) {
  const Electorate changed{
      .attempt = 1, .now = {.leader = 1, .launchers = {1, 4}}, .before = {{.leader = 1, .launchers = {1, 2, 3}}}};
  EXPECT_FALSE(has_quorum(changed, {1, 4}));
  EXPECT_FALSE(has_quorum(changed, {2, 3}));
  EXPECT_TRUE(has_quorum(changed, {1, 2}));
}

// Who has the address of a launcher stands for it where all others are there.
TEST(Quorum, OfALeaderThatIsStartedAgain) {
  const Electorate two{.attempt = 0, .now = {.leader = 1, .launchers = {1, 2}}};
  EXPECT_TRUE(has_quorum(two, {2, 9}, 1));
  const Electorate three{.attempt = 0, .now = {.leader = 1, .launchers = {1, 2, 3}}};
  EXPECT_FALSE(has_quorum(three, {2, 9}, 1));
}

TEST(Quorum, OfTheFirstAttemptIsMoreThanHalfOfAllMachines) {
  const JobSettings settings{.slots = {1, 1}, .worlds = {2, 1}, .max_restarts = 1};
  JobState state =
      next_step(job_rules(), settings, first_state(settings), {.kind = EventKind::joined, .node = 0, .launcher = 1})
          .state;
  state = next_step(job_rules(), settings, std::move(state), {.kind = EventKind::waited}).state;
  EXPECT_EQ(state.phase, JobPhase::over);
  EXPECT_EQ(state.exit_code, 1);
}

TEST(Quorum, VotersOfAnAttemptAreAgreedOn) {
  const JobSettings settings{.slots = {1, 1, 1}, .worlds = {3, 2}, .max_restarts = 1};
  JobState state = first_state(settings);
  std::vector<JobAction> actions;
  const auto step = [&](const JobEvent& event) {
    JobStep next = next_step(job_rules(), settings, std::move(state), event);
    state = std::move(next.state);
    actions = std::move(next.actions);
  };
  for (const int node : {0, 1, 2}) step({.kind = EventKind::joined, .node = node, .launcher = node + 1});
  EXPECT_EQ(state.electorate, (Electorate{.attempt = 0, .now = {.leader = 1, .launchers = {1, 2, 3}}}));
  step({.kind = EventKind::lost, .node = 2});
  for (const int node : {0, 1}) step({.kind = EventKind::ended, .node = node});
  step({.kind = EventKind::waited});
  step({.kind = EventKind::fence_over, .node = 2});
  EXPECT_EQ(state.electorate.now.launchers, (std::vector<int64_t>{1, 2}));
  EXPECT_THAT(state.electorate.before, ElementsAre(Voters{.leader = 1, .launchers = {1, 2, 3}}));
  step({.kind = EventKind::agreed, .node = 0, .attempt = 1});
  step({.kind = EventKind::agreed, .node = 1, .attempt = 0});  // of another one
  EXPECT_EQ(state.electorate.before.size(), 1u);
  step({.kind = EventKind::agreed, .node = 1, .attempt = 1});
  EXPECT_TRUE(state.electorate.before.empty());
  EXPECT_EQ(actions.size(), 2u);
}

// --- ranks that cannot be brought back

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
  fail(0, 1, kExitBadDevice);  // machine 0 has none left, and serves the store
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
  EXPECT_EQ(state_.phase, JobPhase::gathering);  // until nothing of it can be left
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
  const JobSettings settings{.slots = {4, 4}, .worlds = {8, 6, 4, 2}, .together = 2};
  std::vector<NodeView> nodes(2);
  for (NodeView& node : nodes) node.phase = NodePhase::ready;
  nodes[0].bad_slots = {2};
  const Assignment assignment = assign_ranks(settings, nodes).value();
  EXPECT_EQ(assignment.world, 6);
  EXPECT_THAT(assignment.nodes, ElementsAre(NodeShare{0, {0, 1}}, NodeShare{2, {0, 1, 2, 3}}));
}

TEST(JobState, RulesArePrintedAndDrawn) {
  EXPECT_THAT(rules_table(job_rules()), HasSubstr("  running    trouble       stopping   stop\n"));
  EXPECT_THAT(rules_mermaid(job_rules()), HasSubstr("    job_running --> job_stopping: trouble / stop\n"));
  EXPECT_THAT(rules_mermaid(job_rules()), HasSubstr("    machine_running --> machine_absent: lost / fence\n"));
  EXPECT_THAT(rules_mermaid(job_rules()), HasSubstr("    spare_ready --> spare_absent: taken / hand_over\n"));
}

}  // namespace
}  // namespace concord
