// The leader's part of JobRun, with members that the test plays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/launch/job/job_run.h"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// The launcher of machine 0 of 3, and others that the test plays.
class OneLeader : public ::testing::Test {
 protected:
  struct Member {
    std::unique_ptr<JobLink> link;
    std::vector<JobMessage> received;
    bool is_lost = false;
  };
  OneLeader() {
    leader_ = std::make_unique<JobRun>(JobRunOptions{.node = 0,
                                                     .nnodes = 3,
                                                     .nproc = 2,
                                                     .port = port_.port(),
                                                     .token = "secret",
                                                     .job = "job",
                                                     .worlds = {6},
                                                     .max_restarts = 3,
                                                     .kills_at_once = true},
                                       std::make_unique<FixedLeader>(true, "127.0.0.1", port_.port()),
                                       [this](const std::string& line) { said_ += line + "\n"; });
  }
  static JobHello hello(int node) {
    return {.node = node,
            .node_rank = node,
            .nnodes = 3,
            .nproc = 2,
            .max_restarts = 3,
            .worlds = 1,
            .launcher = 100 + node,
            .who = "process " + std::to_string(node)};
  }
  Member join(const JobHello& hello) {
    std::string why;
    Member member{.link = JobLink::try_join("127.0.0.1", port_.port(), "secret", 60s, &why), .received = {}};
    member.link->send(JobLink::kLeader, hello_message(hello));
    return member;
  }
  // Until |member| has received |count| messages.
  void pump(Member* member, size_t count) {
    for (int i = 0; i < 60'000 && member->received.size() < count && !member->is_lost; ++i) {
      leader_->pump();
      for (JobLink::Received& received : member->link->take()) {
        if (received.message) member->received.push_back(*received.message);
        member->is_lost = !received.message;
      }
      std::this_thread::sleep_for(1ms);
    }
    ASSERT_GE(member->received.size(), count) << said_;
  }
  std::string refusal(JobHello hello) {
    Member member = join(hello);
    pump(&member, 1);
    return member.received.empty() ? "" : pack(member.received[0]);
  }
  static std::vector<JobMessage::Kind> kinds(const Member& member) {
    std::vector<JobMessage::Kind> found;
    for (const JobMessage& message : member.received) found.push_back(message.kind);
    return found;
  }
  static void say(const Member& member, const JobMessage& message) { member.link->send(JobLink::kLeader, message); }

  std::string said_;
  HeldPort port_;
  std::unique_ptr<JobRun> leader_;
};

TEST_F(OneLeader, SaysWhoDoesNotBelongToTheJob) {
  JobHello other = hello(1);
  other.nnodes = 4;
  EXPECT_THAT(refusal(other), HasSubstr("refused|--nnodes is 4 on machine 1 and 3 on machine 0"));
  other = hello(1);
  other.nproc = 1;
  EXPECT_THAT(refusal(other), HasSubstr("refused|--nproc is 1 on machine 1 and 2 on machine 0"));
  other = hello(1);
  other.max_restarts = 4;
  EXPECT_THAT(refusal(other), HasSubstr("--max_restarts is 4 on machine 1 and 3"));
  other = hello(1);
  other.worlds = 3;
  EXPECT_THAT(refusal(other), HasSubstr("(--allow_fewer_ranks) is 2 on machine 1 and 0"));
  EXPECT_THAT(refusal(hello(-1)), HasSubstr("there is no machine -1"));
  EXPECT_THAT(refusal(hello(0)), HasSubstr("two launchers have --node_rank 0"));
  Member first = join(hello(1));
  pump(&first, 1);
  EXPECT_THAT(refusal(hello(1)), HasSubstr("two launchers have --node_rank 1: process 1, and process 1"));
  Member spare = join(hello(7));
  pump(&spare, 1);
  EXPECT_THAT(refusal(hello(7)), HasSubstr("two launchers have --node_rank 7"));
}

TEST_F(OneLeader, LeadsThroughARestartAndTheEnd) {
  using Kind = JobMessage::Kind;
  Member first = join(hello(1)), second = join(hello(2)), spare = join(hello(8));
  pump(&first, 2);
  pump(&second, 2);
  pump(&spare, 1);
  EXPECT_THAT(kinds(first), ElementsAre(Kind::welcome, Kind::start));
  EXPECT_THAT(kinds(spare), ElementsAre(Kind::welcome));
  EXPECT_EQ(first.received[0].text, "job");
  EXPECT_THAT(pack(second.received[1]), ::testing::StartsWith("start 0 "));
  ASSERT_TRUE(leader_->take_start());
  say(first, {.kind = Kind::failed, .numbers = {0, 1, 1, 3}, .text = "exit code 1"});
  pump(&second, 3);
  EXPECT_EQ(pack(second.received[2]), "stop 0 0|rank 3 on machine 1 (process 1) failed: exit code 1");
  EXPECT_EQ(leader_->order(), AttemptOrder::kill);
  // The second one is lost before it has ended its ranks, and the spare one takes its place.
  say(first, ended_message(0, {.has_failed = true, .failed_slot = 1}));
  second.link.reset();
  leader_->ranks_ended({});
  pump(&spare, 3);
  EXPECT_THAT(kinds(spare), ElementsAre(Kind::welcome, Kind::welcome, Kind::start));
  EXPECT_THAT(spare.received[1].numbers, ElementsAre(2));
  EXPECT_THAT(said_, HasSubstr("restart 1 of 3 (attempt 2)"));
  ASSERT_TRUE(leader_->take_start());
  EXPECT_EQ(leader_->order(), AttemptOrder::none);
  // Both were asked to stop, and have saved: the others only get the time to end.
  Member late = join(hello(9));
  pump(&late, 1);
  EXPECT_THAT(kinds(late), ElementsAre(Kind::welcome));
  say(first, ended_message(1, {.stop_signal = 15, .stopped_as_asked = true}));
  pump(&spare, 4);
  EXPECT_THAT(pack(spare.received[3]), ::testing::StartsWith("stop 1 1|"));
  say(spare, ended_message(1, {.stop_signal = 15, .stopped_as_asked = true}));
  leader_->ranks_ended({.stop_signal = 15, .stopped_as_asked = true});
  pump(&late, 2);
  EXPECT_THAT(pack(late.received[1]), ::testing::StartsWith("finish 143|"));  // a spare machine ends with the job
  pump(&spare, 5);
  EXPECT_THAT(pack(spare.received[4]), ::testing::StartsWith("finish 143|"));
  EXPECT_TRUE(leader_->is_over());
  EXPECT_THAT(refusal(hello(5)), HasSubstr("the job is over"));
}

// It waits as a spare machine, and is the next to replace one; it has a number that no other spare one has.
TEST_F(OneLeader, TakesALauncherThatComesBackTooLateAsASpareMachine) {
  Member first = join(hello(1)), second = join(hello(2)), spare = join(hello(8));
  pump(&first, 2);
  pump(&second, 2);
  pump(&spare, 1);
  ASSERT_TRUE(leader_->take_start());
  second.link.reset();
  pump(&spare, 2);
  EXPECT_THAT(spare.received[1].numbers, ElementsAre(2));
  JobHello again = hello(2);
  again.launcher = 108;  // the spare one's: its connection has broken, which nobody has noticed yet
  EXPECT_THAT(refusal(again), HasSubstr("two launchers have --node_rank 2"));
  again.launcher = 202;
  Member late = join(again);
  pump(&late, 1);
  EXPECT_EQ(late.received[0].kind, JobMessage::Kind::welcome) << pack(late.received[0]);
  EXPECT_THAT(late.received[0].numbers, ElementsAre(3));
  EXPECT_THAT(said_, HasSubstr("the spare machine 3 (process 2) is here"));
  Member named = join(hello(3));
  pump(&named, 1);
  EXPECT_THAT(named.received[0].numbers, ElementsAre(4));
  first.link.reset();
  pump(&late, 2);
  EXPECT_THAT(late.received[1].numbers, ElementsAre(1));
}

// Launchers of a job that has lost its leader come to one that was started again.
TEST_F(OneLeader, ContinuesTheJobOfLaunchersThatHaveRunAttempts) {
  JobHello other = hello(1), another = hello(2);
  other.last_attempt = another.last_attempt = 4;
  other.job = another.job = "the job before";
  other.saved_step = 30;
  Member first = join(other);
  pump(&first, 1);
  EXPECT_EQ(first.received[0].text, "the job before");
  Member second = join(another);
  pump(&second, 2);
  EXPECT_THAT(pack(second.received[1]), ::testing::StartsWith("start 5 "));
  EXPECT_EQ(leader_->take_start()->job, "the job before");
  EXPECT_THAT(said_, HasSubstr("continuing the job of machine 1 (process 1), after attempt 5"));
  EXPECT_THAT(said_, HasSubstr("continuing (attempt 6)"));
}

}  // namespace
}  // namespace concord
