#include "core/launch/job_run.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config_error.h"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// A launcher of machine 1 of 2, and a leader that the test plays.
class OneMember : public ::testing::Test {
 protected:
  explicit OneMember(std::chrono::seconds rejoin_timeout = 60s)
      : leader_(JobLink::serve("127.0.0.1", port_.port(), "secret")) {
    member_ = std::make_unique<JobRun>(
        JobRunOptions{.node = 1,
                      .nnodes = 2,
                      .nproc = 2,
                      .master_addr = "127.0.0.1",
                      .master_port = port_.port(),
                      .token = "secret",
                      .worlds = {4},
                      .max_restarts = 3,
                      .rejoin_timeout = rejoin_timeout},
        [this](const std::string& line) { said_ += line + "\n"; }, [] { return false; });
    hello_ = hear();
  }
  // What the member says next; noise is left out.
  JobMessage hear() {
    for (int i = 0; i < 60'000; ++i) {
      for (JobLink::Heard& heard : leader_->take()) {
        peer_ = heard.peer;
        if (heard.message && heard.message->kind != JobMessage::Kind::alive) return *heard.message;
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
  EXPECT_THAT(hello_.text, ::testing::StartsWith("|127.0.0.1||process "));
  start(0);
  std::optional<AttemptStart> begun;
  pump_until([&] { return begun || (begun = member_->take_start()); });
  EXPECT_EQ(begun->store_address, "10.0.0.1");
  EXPECT_EQ(begun->store_port, 29511);
  EXPECT_EQ(begun->share, (NodeShare{2, {0, 1}}));
  EXPECT_EQ(begun->job, "job");
  member_->rank_failed({.has_failed = true, .failed_slot = 1, .exit_code = 71}, 3, "exit code 71");
  const JobMessage failed = hear();
  EXPECT_EQ(pack(failed), "failed 0 1 71 3|exit code 71");
  member_->ranks_ended({.has_failed = true, .failed_slot = 1, .exit_code = 71});
  EXPECT_EQ(hear(), ended_message(0, {.has_failed = true, .failed_slot = 1, .exit_code = 71}));
  say({.kind = JobMessage::Kind::stop, .numbers = {0, 0}, .text = "late"});  // crossed the end
  say({.kind = JobMessage::Kind::start, .numbers = {1, 29512, 4, 2, 0, 1}});
  begun.reset();
  pump_until([&] { return begun || (begun = member_->take_start()); });
  EXPECT_EQ(member_->order(), AttemptOrder::none);
  say({.kind = JobMessage::Kind::stop, .numbers = {1, 0}, .text = "rank 0 failed"});
  pump_until([&] { return member_->order() == AttemptOrder::end; });
  EXPECT_THAT(said_, HasSubstr("the attempt ends: rank 0 failed"));
  member_->ranks_ended({});
  EXPECT_EQ(hear().kind, JobMessage::Kind::ended);
  say({.kind = JobMessage::Kind::finish, .numbers = {75}, .text = "why"});
  pump_until([&] { return member_->is_over(); });
  EXPECT_EQ(member_->exit_code(), 75);
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

// And tells the new one where the job was.
TEST_F(OneMember, FindsALeaderThatIsStartedAgain) {
  const int64_t launcher = hello_.numbers[5];
  const std::string roster =
      fmt::format("4 now,77,77,{0} 77,0,{1},127.0.0.1 {0},1,{2},127.0.0.1", launcher, port_.port(), hello_.numbers[6]);
  say({.kind = JobMessage::Kind::welcome, .text = "job"});
  say({.kind = JobMessage::Kind::roster, .text = roster});
  start(4);
  std::optional<AttemptStart> begun;
  pump_until([&] { return begun || (begun = member_->take_start()); });
  EXPECT_EQ(pack(hear()), "agreed 4|");
  member_->progress(30, 20);
  leader_.reset();
  pump_until([&] { return member_->order() == AttemptOrder::kill; });
  member_->ranks_ended({});
  leader_ = JobLink::serve("127.0.0.1", port_.port(), "secret");
  std::optional<JobMessage> hello;
  pump_until([&] {
    for (JobLink::Heard& heard : leader_->take()) {
      peer_ = heard.peer;
      if (heard.message) hello = *heard.message;
    }
    return hello.has_value();
  });
  EXPECT_THAT(hello->numbers, ElementsAre(1, 2, 2, 3, 1, launcher, hello_.numbers[6], 30, 20, 1));
  EXPECT_THAT(hello->text, ::testing::StartsWith("job|127.0.0.1|" + roster + "|process "));
  start(5);
  begun.reset();
  pump_until([&] { return begun || (begun = member_->take_start()); });
  EXPECT_EQ(begun->attempt, 5);
  EXPECT_EQ(member_->order(), AttemptOrder::none);
}

TEST_F(OneMemberWithoutPatience, DoesNotBeginAnAttemptOfALeaderThatIsLost) {
  start(0);
  leader_->close(60s);
  pump_until([&] { return member_->is_over(); });
  EXPECT_FALSE(member_->take_start());
  EXPECT_EQ(member_->exit_code(), kExitRequeue);
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
