// Launchers of a job whose leader is elected, with a store in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>

#include "core/launch/job/job_run.h"

namespace concord {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

// What launchers share: the lease and the record of the job.
struct Shared {
  std::optional<LeaderAddress> leader = {};
  const LeaderStore* holder = nullptr;
  Membership membership = {};
  bool accepts_records = true;
};

class SharedStore final : public LeaderStore {
 public:
  explicit SharedStore(Shared* shared) : shared_(shared) {}
  std::optional<LeaderAddress> leader() override { return shared_->leader; }
  void campaign(const LeaderAddress& self) override {
    if (shared_->leader) return;
    shared_->leader = self;
    shared_->holder = this;
  }
  bool leads() override { return shared_->holder == this; }
  bool elects() const override { return true; }
  Membership membership() override { return shared_->membership; }
  bool record(const Membership& membership) override {
    if (!leads() || !shared_->accepts_records) return false;
    shared_->membership = membership;
    return true;
  }
  void resign() override { *shared_ = {}; }
  Seconds election_time() const override { return Seconds(0); }
  std::string own_address() override { return "127.0.0.1"; }
  std::string problem() override { return ""; }

 private:
  Shared* const shared_;
};

class Election : public ::testing::Test {
 protected:
  struct Launcher {
    std::string said;
    std::unique_ptr<JobRun> run;
    std::optional<AttemptStart> start;
    bool leads() const { return said.find("leads the job from now on") != std::string::npos; }
  };
  void start(int node, std::chrono::seconds rejoin_timeout = 60s) {
    Launcher& launcher = launchers_.at(static_cast<size_t>(node));
    launcher.run = std::make_unique<JobRun>(JobRunOptions{.node = node,
                                                          .nnodes = 3,
                                                          .nproc = 1,
                                                          .token = "secret",
                                                          .job = "job",
                                                          .worlds = {3},
                                                          .max_restarts = 3,
                                                          .kills_at_once = true,
                                                          .rejoin_timeout = rejoin_timeout},
                                            std::make_unique<SharedStore>(&shared_),
                                            [&launcher](const std::string& line) { launcher.said += line + "\n"; });
  }
  void start_all() {
    start(0);
    pump_until([&] { return launchers_[0].leads(); });
    for (const int node : {1, 2}) start(node);
    pump_until([&] { return all_started(0); });
  }
  bool all_started(int attempt) const {
    return std::all_of(launchers_.begin(), launchers_.begin() + 3,
                       [&](const Launcher& each) { return each.start && each.start->attempt == attempt; });
  }
  // Ranks exit as soon as they are killed.
  template <class Condition>
  void pump_until(Condition condition) {
    for (int i = 0; i < 60'000 && !condition(); ++i) {
      for (Launcher& launcher : launchers_) {
        if (!launcher.run) continue;
        launcher.run->pump();
        if (std::optional<AttemptStart> start = launcher.run->take_start()) launcher.start = start;
        if (launcher.start && launcher.run->order() == AttemptOrder::kill) {
          launcher.start.reset();
          launcher.run->ranks_ended({});
        }
      }
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(condition());
  }
  void take_lease_away() {
    shared_.leader.reset();
    shared_.holder = nullptr;
  }

  Shared shared_;
  std::array<Launcher, 4> launchers_;
};

TEST_F(Election, AnotherLauncherContinuesTheJobOfALeaderThatHasLostItsLease) {
  start_all();
  EXPECT_EQ(shared_.membership.attempt, 0);
  EXPECT_EQ(shared_.membership.who.size(), 3u);
  EXPECT_EQ(launchers_[0].start->share.first_rank, 0);
  launchers_[0].said.clear();
  shared_.leader = LeaderAddress{.launcher = 1, .address = "127.0.0.1", .port = 1};  // does not answer
  shared_.holder = nullptr;
  pump_until([&] { return !launchers_[0].start && !launchers_[1].start && !launchers_[2].start; });
  EXPECT_THAT(launchers_[0].said, HasSubstr("this launcher no longer leads the job: its lease has expired"));
  EXPECT_THAT(launchers_[1].said, HasSubstr("the launcher that leads the job is lost: its connection has ended"));
  take_lease_away();
  pump_until([&] { return all_started(1); });
  EXPECT_EQ(std::ranges::count_if(launchers_, &Launcher::leads), 1);
  EXPECT_EQ(shared_.membership.attempt, 1);
}

TEST_F(Election, NoAttemptStartsThatCannotBeRecorded) {
  shared_.accepts_records = false;
  start(0);
  pump_until([&] { return launchers_[0].leads(); });
  for (const int node : {1, 2}) start(node);
  pump_until([&] { return launchers_[0].said.find("no longer leads the job") != std::string::npos; });
  EXPECT_FALSE(launchers_[0].start || launchers_[1].start || launchers_[2].start);
  shared_.accepts_records = true;
  pump_until([&] { return all_started(0); });
}

// Its record is gone: starting it again would train it twice.
TEST_F(Election, ALauncherDoesNotContinueAJobThatIsOver) {
  start(0);
  pump_until([&] { return launchers_[0].leads(); });
  for (const int node : {1, 2}) start(node, 0s);
  pump_until([&] { return all_started(0); });
  launchers_[0].run.reset();
  launchers_[0].start.reset();
  shared_ = {};
  pump_until([&] { return launchers_[1].run->is_over() && launchers_[2].run->is_over(); });
  EXPECT_EQ(launchers_[1].run->exit_code(), kExitRequeue);
  EXPECT_FALSE(shared_.leader);
}

TEST_F(Election, ASpareMachineDoesNotLead) {
  start(3);
  pump_until([n = 0]() mutable { return ++n > 300; });
  EXPECT_FALSE(shared_.leader);
  start_all();
  pump_until([&] { return launchers_[3].said.find("this is a spare machine") != std::string::npos; });
  EXPECT_THAT(launchers_[3].said, Not(HasSubstr("leads the job")));
}

TEST_F(Election, TheRecordIsErasedWithTheJob) {
  start_all();
  for (Launcher& launcher : launchers_) {
    if (launcher.run) launcher.run->ranks_ended({.succeeded = true});
  }
  pump_until(
      [&] { return launchers_[0].run->is_over() && launchers_[1].run->is_over() && launchers_[2].run->is_over(); });
  EXPECT_EQ(launchers_[1].run->exit_code(), 0);
  launchers_[0].run.reset();
  EXPECT_FALSE(shared_.leader);
  EXPECT_EQ(shared_.membership, Membership{});
}

}  // namespace
}  // namespace concord
