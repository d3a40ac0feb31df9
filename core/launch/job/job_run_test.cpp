#include "core/launch/job/job_run.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "core/base/config_error.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Of machine 1 of 2.
JobRunOptions member_options(int port, std::chrono::seconds rejoin_timeout) {
  return {.node = 1,
          .nnodes = 2,
          .nproc = 2,
          .master_addr = "127.0.0.1",
          .master_port = port,
          .token = "secret",
          .worlds = {4},
          .max_restarts = 3,
          .rejoin_timeout = rejoin_timeout};
}

// A launcher of machine 1 of 2, and a leader that the test plays.
class OneMember : public ::testing::Test {
 protected:
  explicit OneMember(std::chrono::seconds rejoin_timeout = 60s)
      : leader_(JobLink::serve("127.0.0.1", port_.port(), "secret")) {
    member_ = std::make_unique<JobRun>(
        member_options(port_.port(), rejoin_timeout), [this](const std::string& line) { said_ += line + "\n"; },
        [] { return false; });
    hello_ = hear();
  }
  // What the member says next; noise is left out.
  JobMessage hear() {
    for (int i = 0; i < 60'000; ++i) {
      for (JobLink::Received& heard : leader_->take()) {
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
  ASSERT_EQ(hello_.numbers.size(), 11u);
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

TEST_F(OneMember, GivesRanksThatHaveAgreedToEndTheTimeForIt) {
  start(0);
  std::optional<AttemptStart> begun;
  pump_until([&] { return begun || (begun = member_->take_start()); });
  say({.kind = JobMessage::Kind::stop, .numbers = {0, 1}, .text = "machine 0 was asked to stop"});
  pump_until([&] { return member_->order() != AttemptOrder::none; });
  EXPECT_EQ(member_->order(), AttemptOrder::wait);
}

// Now and then, and before the end of an attempt, after which the leader decides.
TEST_F(OneMember, TellsWhatItHasSaved) {
  start(0);
  std::optional<AttemptStart> begun;
  pump_until([&] { return begun || (begun = member_->take_start()); });
  std::vector<std::string> heard;
  const auto hear_until = [&](const std::string& last) {
    for (int i = 0; i < 60'000 && (heard.empty() || heard.back() != last); ++i) {
      for (JobLink::Received& each : leader_->take()) heard.push_back(pack(each.message.value()));
      std::this_thread::sleep_for(1ms);
    }
  };
  member_->progress(30, 20);
  hear_until("alive 30 20|");
  ASSERT_THAT(heard, ::testing::Contains("alive 30 20|"));
  heard.clear();
  member_->progress(36, 20);
  member_->ranks_ended({});
  hear_until(pack(ended_message(0, {})));
  EXPECT_THAT(heard, ::testing::IsSupersetOf({std::string("alive 36 20|"), pack(ended_message(0, {}))}));
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
  std::string before = roster;  // those of the attempt before decide as well, until enough know it
  before.insert(before.find(" 77,0,"), " before,77,77");
  say({.kind = JobMessage::Kind::roster, .text = before});
  say({.kind = JobMessage::Kind::agreed, .numbers = {4}});
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
    for (JobLink::Received& heard : leader_->take()) {
      peer_ = heard.peer;
      if (heard.message) hello = *heard.message;
    }
    return hello.has_value();
  });
  EXPECT_THAT(hello->numbers, ElementsAre(1, 2, 2, 3, 1, launcher, hello_.numbers[6], 30, 20, 1, 1));
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

// Somebody that asks a launcher which does not lead: |link| to its door. The answer, or how the connection ended.
JobLink::Received ask(JobLink* link, JobRun* member) {
  link->send(JobLink::kLeader, hello_message({.node = 1, .nnodes = 2, .nproc = 2, .max_restarts = 3, .worlds = 1}));
  for (int i = 0; i < 60'000; ++i) {
    member->pump();
    for (JobLink::Received& heard : link->take()) return heard;
    std::this_thread::sleep_for(1ms);
  }
  ADD_FAILURE() << "no answer";
  return {};
}

TEST_F(OneMember, SaysWhoLeadsToThoseWhoKnowTheToken) {
  const int door = static_cast<int>(hello_.numbers[6]);
  std::string why;
  const auto early = JobLink::try_join("127.0.0.1", door, "secret", 60s, &why);
  ASSERT_TRUE(early) << why;
  EXPECT_EQ(pack(ask(early.get(), member_.get()).message.value()), "redirect 0|127.0.0.1");  // not welcome yet itself
  start(0);
  std::optional<AttemptStart> begun;
  pump_until([&] { return begun || (begun = member_->take_start()); });
  const auto link = JobLink::try_join("127.0.0.1", door, "secret", 60s, &why);
  EXPECT_EQ(pack(ask(link.get(), member_.get()).message.value()), fmt::format("redirect {}|127.0.0.1", port_.port()));
  const auto stranger = JobLink::try_join("127.0.0.1", door, "guessed", 60s, &why);
  EXPECT_FALSE(ask(stranger.get(), member_.get()).message);
}

// The address that it was given is that of a launcher which does not lead any more; or nobody is there, and a file has
// that of the one that was elected.
TEST(Newcomer, GoesWhereItIsSentOrWhereTheFileSays) {
  for (const bool is_sent : {true, false}) {
    HeldPort given, elected;
    std::unique_ptr<JobLink> old;
    if (is_sent) old = JobLink::serve("127.0.0.1", given.port(), "secret");
    const auto leader = JobLink::serve("127.0.0.1", elected.port(), "secret");
    JobRunOptions options = member_options(given.port(), 60s);
    const tests::TemporaryFolder folder;
    if (!is_sent) options.leader_file = folder.path() + "/leader.txt";
    std::ofstream(folder.path() + "/leader.txt") << elected.port() << " 127.0.0.1\n";
    JobRun newcomer(options, [](const std::string&) {}, [] { return false; });
    std::optional<JobMessage> hello;
    int peer = 0;
    for (int i = 0; i < 60'000 && !hello; ++i) {
      newcomer.pump();
      if (old) {
        for (JobLink::Received& heard : old->take()) {
          old->send(heard.peer, {.kind = JobMessage::Kind::redirect, .numbers = {elected.port()}, .text = "127.0.0.1"});
        }
      }
      for (JobLink::Received& heard : leader->take()) {
        peer = heard.peer;
        if (heard.message) hello = *heard.message;
      }
      std::this_thread::sleep_for(1ms);
    }
    ASSERT_TRUE(hello) << is_sent;
    EXPECT_EQ(hello_of(*hello).node, 1);
    leader->send(peer, {.kind = JobMessage::Kind::finish, .numbers = {7}});
    for (int i = 0; i < 60'000 && !newcomer.is_over(); ++i) {
      newcomer.pump();
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(newcomer.exit_code(), 7);
  }
}

// Where the file is of an earlier job somebody else may listen there by now.
TEST(Newcomer, KeepsAskingWhereItWasToldToWhenAStrangerHasTheElectedOnesAddress) {
  HeldPort given, elected;
  const auto stranger = JobLink::serve("127.0.0.1", elected.port(), "another token");
  const tests::TemporaryFolder folder;
  JobRunOptions options = member_options(given.port(), 60s);
  options.leader_file = folder.path() + "/leader.txt";
  std::ofstream(options.leader_file) << elected.port() << " 127.0.0.1\n";
  JobRun newcomer(options, [](const std::string&) {}, [] { return false; });  // has reached the stranger
  const auto leader = JobLink::serve("127.0.0.1", given.port(), "secret");
  bool is_there = false;
  for (int i = 0; i < 60'000 && !is_there; ++i) {
    newcomer.pump();
    for (JobLink::Received& heard : leader->take()) is_there = heard.message.has_value();
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(is_there);
}

TEST(Newcomer, EndsWhenThereIsNobody) {
  HeldPort given;
  JobRunOptions options = member_options(given.port(), 60s);
  options.join_timeout = 0s;
  EXPECT_THROW(JobRun(options, [](const std::string&) {}, [] { return false; }), ConfigError);
  EXPECT_NO_THROW(JobRun(options, [](const std::string&) {}, [] { return true; }));
}

// A launcher of machine 1 of 4 that has lost its leader, and others that vote for it.
class OneElection : public ::testing::Test {
 protected:
  explicit OneElection(bool votes = true) : first_(JobLink::serve("127.0.0.1", port_.port(), "secret")) {
    JobRunOptions options = member_options(port_.port(), 60s);
    options.nnodes = 4;
    options.worlds = {8};
    options.leader_file = folder_ / "leader.txt";
    member_ = std::make_unique<JobRun>(
        options, [this](const std::string& line) { said_ += line + "\n"; }, [] { return false; });
    std::optional<JobLink::Received> heard;
    for (int i = 0; i < 60'000 && !heard; ++i) {
      for (JobLink::Received& each : first_->take()) heard = each;
      std::this_thread::sleep_for(1ms);
    }
    own_ = hello_of(heard->message.value());
    roster_ = {.electorate = {.attempt = 4, .now = {.leader = 77, .launchers = {77, own_.launcher, 102, 103}}},
               .voters = {{.launcher = 77, .node = 0, .port = port_.port(), .address = "127.0.0.1"},
                          {.launcher = own_.launcher, .node = 1, .port = 4001, .address = "127.0.0.1"}}};
    if (!votes) std::erase(roster_.electorate.now.launchers, own_.launcher);
    first_->send(heard->peer, {.kind = JobMessage::Kind::welcome, .text = "job"});
    first_->send(heard->peer, {.kind = JobMessage::Kind::roster, .text = pack(roster_)});
    pump_until([&] { return !first_->take().empty(); });  // it has the roster
    first_.reset();
    pump_until([&] { return said_.find("is lost") != std::string::npos; });
  }
  template <class Condition>
  void pump_until(Condition condition) {
    for (int i = 0; i < 60'000 && !condition(); ++i) {
      member_->pump();
      std::this_thread::sleep_for(1ms);
    }
  }
  struct Vote {
    std::unique_ptr<JobLink> link;
    std::string answer;
  };
  Vote vote(int node, int64_t launcher, const Membership& roster) {
    std::string why;
    Vote vote{JobLink::try_join("127.0.0.1", static_cast<int>(own_.port), "secret", 60s, &why), ""};
    vote.link->send(JobLink::kLeader, hello_message({.node = node,
                                                     .nnodes = 4,
                                                     .nproc = 2,
                                                     .max_restarts = 3,
                                                     .worlds = 1,
                                                     .launcher = launcher,
                                                     .port = 4000 + node,
                                                     .job = "job",
                                                     .address = "127.0.0.1",
                                                     .roster = roster}));
    for (int i = 0; i < 200; ++i) {  // long enough to be heard, where it has to be
      member_->pump();
      for (JobLink::Received& heard : vote.link->take()) {
        if (vote.answer.empty()) vote.answer = heard.message ? pack(*heard.message) : "lost";
      }
      std::this_thread::sleep_for(1ms);
    }
    return vote;
  }
  bool leads() const { return said_.find("leads the job from now on") != std::string::npos; }

  const tests::TemporaryFolder folder_;
  std::string said_;
  HeldPort port_;
  std::unique_ptr<JobLink> first_;
  std::unique_ptr<JobRun> member_;
  JobHello own_;
  Membership roster_;
};

TEST_F(OneElection, NeedsMoreThanHalfOfTheVoters) {
  const Vote one = vote(2, 102, roster_);
  EXPECT_EQ(one.answer, "");
  EXPECT_FALSE(leads());                                           // two of four, without the leader
  EXPECT_EQ(vote(0, 78, roster_).answer, "redirect 0|127.0.0.1");  // of a lower machine: it would lead itself
  EXPECT_FALSE(leads());
  const Vote other = vote(3, 103, roster_);
  EXPECT_TRUE(leads()) << said_;
  EXPECT_NE(other.answer, "");
  int port = 0;
  std::ifstream(folder_ / "leader.txt") >> port;  // for those who are started anew
  EXPECT_EQ(port, own_.port);
  member_.reset();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "leader.txt"));
}

class ElectionOfOthers : public OneElection {
 protected:
  ElectionOfOthers() : OneElection(false) {}
};

// A spare machine, or one that came later.
TEST_F(ElectionOfOthers, IsNotForOneThatIsNoVoter) {
  EXPECT_EQ(vote(2, 102, roster_).answer, "redirect 0|127.0.0.1");
  EXPECT_FALSE(leads());
}

TEST_F(OneElection, SendsItsVotersOnWhileItWaitsForAnotherToBeElected) {
  const Vote early = vote(2, 102, roster_);
  EXPECT_EQ(early.answer, "");
  const auto lower = JobLink::serve("127.0.0.1", port_.port(), "secret");
  std::string answer;
  pump_until([&] {
    for (const JobLink::Received& heard : early.link->take()) {  // the connection is closed after its answer
      if (answer.empty()) answer = heard.message ? pack(*heard.message) : "lost";
    }
    return !answer.empty();
  });
  EXPECT_EQ(answer, "redirect 0|127.0.0.1");
  EXPECT_EQ(vote(3, 103, roster_).answer, "redirect 0|127.0.0.1");
}

TEST_F(OneElection, AVoterThatIsGoneDoesNotCount) {
  {
    const Vote gone = vote(2, 102, roster_);
  }
  pump_until([n = 0]() mutable { return ++n > 200; });
  const Vote other = vote(3, 103, roster_);
  EXPECT_FALSE(leads());
}

// The newest one counts: those who know it have been in an attempt without this launcher.
TEST_F(OneElection, IsNotWonByOneThatALaterAttemptWentOnWithout) {
  Membership newer = roster_;
  newer.electorate = {.attempt = 5, .now = {.leader = 102, .launchers = {102, 103}}};
  const Vote one = vote(2, 102, newer), other = vote(3, 103, newer);
  EXPECT_FALSE(leads());
}

TEST(Hello, IsReadAsItWasWritten) {
  const JobHello hello{.node = 1,
                       .node_rank = 6,
                       .nnodes = 2,
                       .nproc = 4,
                       .max_restarts = 3,
                       .worlds = 5,
                       .launcher = 7,
                       .port = 29501,
                       .saved_step = 30,
                       .kept_step = 20,
                       .leader_has_ended = true,
                       .job = "job",
                       .address = "10.0.0.1",
                       .roster = {.electorate = {.attempt = 0, .now = {.leader = 7, .launchers = {7}}}, .voters = {}},
                       .who = "process 1 | on a machine"};
  EXPECT_EQ(hello_of(hello_message(hello)), hello);
  EXPECT_EQ(hello_of({.kind = JobMessage::Kind::hello, .numbers = std::vector<int64_t>(11), .text = "x"}).job, "x");
}

TEST_F(OneMember, IsASpareMachineWhereAnotherHasItsPlace) {
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
