#include "core/launch/job/job_run.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/base/config_error.h"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Options of machine 1 of 2.
JobRunOptions member_options(std::chrono::seconds rejoin_timeout) {
  return {.node = 1,
          .nnodes = 2,
          .nproc = 2,
          .token = "secret",
          .worlds = {4},
          .max_restarts = 3,
          .rejoin_timeout = rejoin_timeout};
}

std::unique_ptr<LeaderStore> leader_at(const HeldPort& port) {
  return std::make_unique<FixedLeader>(false, "127.0.0.1", port.port());
}

// A launcher of machine 1 of 2, and a leader that the test plays.
class OneMember : public ::testing::Test {
 protected:
  explicit OneMember(std::chrono::seconds rejoin_timeout = 60s)
      : leader_(JobLink::serve("127.0.0.1", port_.port(), "secret")),
        member_(std::make_unique<JobRun>(member_options(rejoin_timeout), leader_at(port_),
                                         [this](const std::string& line) { said_ += line + "\n"; })) {
    hello_ = receive();
  }
  // Returns the next message of the member other than heartbeats.
  JobMessage receive() {
    for (int i = 0; i < 60'000; ++i) {
      member_->pump();
      for (JobLink::Received& received : leader_->take()) {
        peer_ = received.peer;
        if (received.message && received.message->kind != JobMessage::Kind::alive) return *received.message;
      }
      std::this_thread::sleep_for(1ms);
    }
    ADD_FAILURE() << "nothing came";
    return {};
  }
  void say(const JobMessage& message) { leader_->send(peer_, message); }
  template <class Condition>
  void pump_until(Condition condition) {
    for (int i = 0; i < 60'000 && !condition(); ++i) {
      member_->pump();
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(condition());
  }
  void start(int attempt) {
    say({.kind = JobMessage::Kind::welcome, .text = "job"});
    say({.kind = JobMessage::Kind::start, .numbers = {attempt, 29511, 4, 2, 0, 1}, .text = "10.0.0.1"});
  }

  std::string said_;
  HeldPort port_;
  std::unique_ptr<JobLink> leader_;
  std::unique_ptr<JobRun> member_;
  JobMessage hello_;
  int peer_ = -1;
};

TEST_F(OneMember, StartsReportsAndEndsAsItIsTold) {
  ASSERT_EQ(hello_.numbers.size(), 10u);
  EXPECT_THAT(std::vector(hello_.numbers.begin(), hello_.numbers.begin() + 5), ElementsAre(1, 2, 2, 3, 1));
  EXPECT_THAT(hello_.text, ::testing::StartsWith("|process "));
  start(0);
  std::optional<AttemptStart> begun;
  pump_until([&] { return begun || (begun = member_->take_start()); });
  EXPECT_EQ(begun->store_address, "10.0.0.1");
  EXPECT_EQ(begun->store_port, 29511);
  EXPECT_EQ(begun->share, (NodeShare{2, {0, 1}}));
  EXPECT_EQ(begun->job, "job");
  member_->rank_failed({.has_failed = true, .failed_slot = 1, .exit_code = 71}, 3, "exit code 71");
  const JobMessage failed = receive();
  EXPECT_EQ(pack(failed), "failed 0 1 71 3|exit code 71");
  member_->ranks_ended({.has_failed = true, .failed_slot = 1, .exit_code = 71});
  EXPECT_EQ(receive(), ended_message(0, {.has_failed = true, .failed_slot = 1, .exit_code = 71}));
  say({.kind = JobMessage::Kind::stop, .numbers = {0, 0}, .text = "late"});  // crossed the end
  say({.kind = JobMessage::Kind::start, .numbers = {1, 29512, 4, 2, 0, 1}});
  begun.reset();
  pump_until([&] { return begun || (begun = member_->take_start()); });
  EXPECT_EQ(member_->order(), AttemptOrder::none);
  say({.kind = JobMessage::Kind::stop, .numbers = {1, 0}, .text = "rank 0 failed"});
  pump_until([&] { return member_->order() == AttemptOrder::end; });
  EXPECT_THAT(said_, HasSubstr("the attempt ends: rank 0 failed"));
  member_->ranks_ended({});
  EXPECT_EQ(receive().kind, JobMessage::Kind::ended);
  say({.kind = JobMessage::Kind::finish, .numbers = {75}, .text = "why"});
  pump_until([&] { return member_->is_over(); });
  EXPECT_EQ(member_->exit_code(), 75);
}

TEST_F(OneMember, GivesRanksThatHaveAgreedToEndTheTimeForIt) {
  start(0);
  std::optional<AttemptStart> begun;
  pump_until([&] { return begun || (begun = member_->take_start()); });
  say({.kind = JobMessage::Kind::stop, .numbers = {0, 1}, .text = "machine 0 was asked to stop"});
  pump_until([&] { return member_->order() != AttemptOrder::none; });
  EXPECT_EQ(member_->order(), AttemptOrder::wait);
}

// With every heartbeat, and before the end of an attempt, after which the leader decides.
TEST_F(OneMember, TellsWhatItHasSaved) {
  start(0);
  std::optional<AttemptStart> begun;
  pump_until([&] { return begun || (begun = member_->take_start()); });
  std::vector<std::string> received;
  const auto receive_until = [&](const std::string& last) {
    for (int i = 0; i < 60'000 && (received.empty() || received.back() != last); ++i) {
      for (JobLink::Received& each : leader_->take()) received.push_back(pack(each.message.value()));
      std::this_thread::sleep_for(1ms);
    }
  };
  member_->progress(30, 20);
  receive_until("alive 30 20|");
  ASSERT_THAT(received, ::testing::Contains("alive 30 20|"));
  received.clear();
  member_->progress(36, 20);
  member_->ranks_ended({});
  receive_until(pack(ended_message(0, {})));
  EXPECT_THAT(received, ::testing::IsSupersetOf({std::string("alive 36 20|"), pack(ended_message(0, {}))}));
}

class OneMemberWithoutPatience : public OneMember {
 protected:
  OneMemberWithoutPatience() : OneMember(0s) {}
};

TEST_F(OneMemberWithoutPatience, KillsItsRanksWhenTheLeaderIsLost) {
  start(0);
  std::optional<AttemptStart> begun;
  pump_until([&] { return begun || (begun = member_->take_start()); });
  leader_.reset();
  pump_until([&] { return member_->order() == AttemptOrder::kill; });
  EXPECT_FALSE(member_->is_over());
  member_->ranks_ended({});
  pump_until([&] { return member_->is_over(); });
  EXPECT_EQ(member_->exit_code(), kExitRequeue);
}

// And tells it which job it was in.
TEST_F(OneMember, FindsALeaderThatIsStartedAgain) {
  const int64_t launcher = hello_.numbers[5];
  start(4);
  std::optional<AttemptStart> begun;
  pump_until([&] { return begun || (begun = member_->take_start()); });
  member_->progress(30, 20);
  leader_.reset();
  pump_until([&] { return member_->order() == AttemptOrder::kill; });
  EXPECT_THAT(said_, HasSubstr("waiting up to 60 s for it to be started again, with --resume_from_checkpoint true"));
  member_->ranks_ended({});
  leader_ = JobLink::serve("127.0.0.1", port_.port(), "secret");
  const JobMessage hello = receive();
  EXPECT_THAT(hello.numbers, ElementsAre(1, 2, 2, 3, 1, launcher, 30, 20, 4, 1));
  EXPECT_THAT(hello.text, ::testing::StartsWith("job|process "));
  start(5);
  begun.reset();
  pump_until([&] { return begun || (begun = member_->take_start()); });
  EXPECT_EQ(begun->attempt, 5);
  EXPECT_EQ(member_->order(), AttemptOrder::none);
  EXPECT_THAT(said_, HasSubstr("found the launcher that leads the job"));
}

TEST_F(OneMemberWithoutPatience, DoesNotBeginAnAttemptOfALeaderThatIsLost) {
  start(0);
  leader_->close(60s);
  pump_until([&] { return member_->is_over(); });
  EXPECT_FALSE(member_->take_start());
  EXPECT_EQ(member_->exit_code(), kExitRequeue);
}

TEST(Newcomer, EndsIfThereIsNoLeader) {
  HeldPort port;
  JobRunOptions options = member_options(60s);
  options.join_timeout = 0s;
  JobRun newcomer(options, leader_at(port), [](const std::string&) {});
  EXPECT_THROW(newcomer.pump(), ConfigError);
  JobRun stopped(options, leader_at(port), [](const std::string&) {});
  stopped.asked(15);
  stopped.pump();
  EXPECT_EQ(stopped.exit_code(), 143);
}

TEST(Newcomer, IsToldThatItsTokenDiffers) {
  HeldPort port;
  const auto leader = JobLink::serve("127.0.0.1", port.port(), "another token");
  JobRun newcomer(member_options(60s), leader_at(port), [](const std::string&) {});
  try {
    for (int i = 0; i < 60'000; ++i) {
      newcomer.pump();
      std::this_thread::sleep_for(1ms);
    }
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("all launchers of a job need the same CONCORD_JOB_TOKEN, or none"));
  }
}

TEST(Hello, RoundTrips) {
  const JobHello hello{.node = 1,
                       .node_rank = 6,
                       .nnodes = 2,
                       .nproc = 4,
                       .max_restarts = 3,
                       .worlds = 5,
                       .launcher = 7,
                       .saved_step = 30,
                       .kept_step = 20,
                       .last_attempt = 4,
                       .job = "job",
                       .who = "process 1 | on a machine"};
  EXPECT_EQ(hello_of(hello_message(hello)), hello);
  EXPECT_EQ(hello_of({.kind = JobMessage::Kind::hello, .numbers = std::vector<int64_t>(10), .text = "x"}).job, "x");
}

TEST_F(OneMember, IsASpareMachineIfAnotherHasItsPlace) {
  say({.kind = JobMessage::Kind::welcome, .numbers = {2}, .text = "job"});
  pump_until([&] { return !said_.empty(); });
  EXPECT_EQ(said_,
            "concord launch: another machine has the place of machine 1: this is a spare machine, which waits for "
            "another one to be lost\n");
  say({.kind = JobMessage::Kind::welcome, .numbers = {0}, .text = "job"});
  pump_until([&] { return said_.find("this spare machine is machine 0 from now on") != std::string::npos; });
}

TEST_F(OneMember, IsToldWhyItIsNotWanted) {
  say({.kind = JobMessage::Kind::refused, .text = "there is no machine 1"});
  try {
    pump_until([] { return false; });
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "there is no machine 1");
  }
}

}  // namespace
}  // namespace concord
