#include "core/base/files/run_lock.h"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "core/base/config_error.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string lock_refusal(const std::string& folder, const std::string& job, const RunLockOptions& options = {}) {
  try {
    const RunLock lock(folder, job, options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

void write_lock(const std::string& folder, const std::string& text) { std::ofstream(folder + "/.lock") << text; }

// Another process that holds the lock until it is terminated, and may have forked a child that outlives it.
class OtherProcess {
 public:
  OtherProcess(const std::string& folder, const std::string& job, bool forks = false,
               const RunLockOptions& options = {}) {
    int ready[2];
    if (::pipe(ready) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setpgid(0, 0);
      const auto lock = std::make_unique<RunLock>(folder, job, options);
      if (forks && ::fork() == 0) ::sleep(60);
      if (::write(ready[1], "x", 1) == 1) ::sleep(60);
      ::_exit(0);
    }
    char byte = 0;
    if (::read(ready[0], &byte, 1) != 1) std::abort();
    for (const int fd : ready) ::close(fd);
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ~OtherProcess() {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST(RunLock, OfALiveProcessIsRefusedWithItsHostAndPid) {
  const tests::TemporaryFolder folder;
  const OtherProcess holder(folder.path(), "first");
  EXPECT_THAT(lock_refusal(folder.path(), "second"),
              AllOf(HasSubstr("process " + std::to_string(holder.pid())), HasSubstr(host_name())));
  EXPECT_EQ(live_run_around(folder.path())->pid, holder.pid());
  EXPECT_EQ(live_run_around(folder / "new/deep/file")->pid, holder.pid());
  ::setenv(kRunLockVariable, "first", 1);
  EXPECT_FALSE(live_run_around(folder / "file")) << "its own job";
  ::unsetenv(kRunLockVariable);
}

TEST(RunLock, OfAKilledProcessIsTakenOverEvenIfItsChildrenLive) {
  const tests::TemporaryFolder folder;
  OtherProcess holder(folder.path(), "first", /*forks=*/true);
  EXPECT_NE(lock_refusal(folder.path(), "second"), "");
  holder.kill();
  EXPECT_TRUE(fs::exists(folder / ".lock"));
  EXPECT_FALSE(live_run_around(folder.path()));
  EXPECT_EQ(lock_refusal(folder.path(), "second"), "");
}

TEST(RunLock, IsSharedByTheProcessesOfAJob) {
  const tests::TemporaryFolder folder;
  const OtherProcess holder(folder.path(), "one");
  EXPECT_EQ(lock_refusal(folder.path(), "one"), "");
  EXPECT_THAT(lock_refusal(folder.path(), "one", {.shares = false}), HasSubstr("in use"));
  EXPECT_THAT(lock_refusal(folder.path(), ""), HasSubstr("in use"));
  EXPECT_TRUE(fs::exists(folder / ".lock")) << "it is the holder's";
}

TEST(RunLock, LeavesNothing) {
  const tests::TemporaryFolder folder;
  {
    const RunLock lock(folder / "new", "a");
  }
  EXPECT_FALSE(fs::exists(folder / "new"));
  {
    const RunLock lock(folder / "new", "a");
    std::ofstream(folder / "new/result") << "x";
  }
  EXPECT_FALSE(fs::exists(folder / "new/.lock"));
  EXPECT_TRUE(fs::exists(folder / "new/result"));
}

TEST(RunLock, ThatAnotherProcessHasTakenOverStays) {
  const tests::TemporaryFolder folder;
  {
    const RunLock lock(folder.path(), "a");
    write_lock(folder.path(), R"({"host":"other","pid":7,"job":"b","beats":1})");
  }
  EXPECT_TRUE(fs::exists(folder / ".lock"));
}

TEST(RunLock, WhatIsNotALockOfOursIsRefusedAndStays) {
  const tests::TemporaryFolder folder;
  write_lock(folder.path(), "mine");
  EXPECT_THAT(lock_refusal(folder.path(), "a"), HasSubstr("not a lock of Concord"));
  EXPECT_EQ(fs::file_size(folder / ".lock"), 4U);
  EXPECT_FALSE(live_run_around(folder.path()));
  fs::remove(folder / ".lock");
  fs::create_directory(folder / ".lock");
  EXPECT_THAT(lock_refusal(folder.path(), "a"), HasSubstr("/.lock: "));
}

// A restart takes a few seconds, in which no process of the job runs.
TEST(RunLock, OfAFailedAttemptStaysUntilItsLauncherExits) {
  const tests::TemporaryFolder folder, other;
  OtherProcess launcher(other.path(), "");
  const RunLockOptions restarted{.launcher = launcher.pid()};
  try {
    const RunLock lock(folder.path(), "", restarted);
    throw std::runtime_error("a rank is lost");
  } catch (const std::runtime_error&) {
  }
  const std::string named = "process " + std::to_string(launcher.pid());
  EXPECT_THAT(lock_refusal(folder.path(), "", {.launcher = ::getpid()}), HasSubstr(named));
  EXPECT_EQ(live_run_around(folder.path())->pid, launcher.pid());
  EXPECT_EQ(lock_refusal(folder.path(), "", restarted), "") << "the next attempt";
  EXPECT_FALSE(fs::exists(folder / ".lock")) << "it has succeeded";
}

TEST(RunLock, OfAKilledAttemptStaysUntilItsLauncherExits) {
  const tests::TemporaryFolder folder, other;
  OtherProcess launcher(other.path(), "");
  OtherProcess attempt(folder.path(), "one", /*forks=*/false, {.launcher = launcher.pid()});
  attempt.kill();
  EXPECT_THAT(lock_refusal(folder.path(), "two"), HasSubstr("process " + std::to_string(launcher.pid())));
  launcher.kill();
  EXPECT_FALSE(live_run_around(folder.path()));
  EXPECT_EQ(lock_refusal(folder.path(), "two"), "");
}

int no_locks(int) { return ENOLCK; }

// Waits for heartbeats as long as necessary, so that a busy machine does not matter.
TEST(RunLock, WithoutLocksALiveHolderIsKnownByItsHeartbeat) {
  const tests::TemporaryFolder folder;
  RunLockOptions options{.beat = milliseconds(10), .missed_beats = 6000, .host = "first", .lock = no_locks};
  const RunLock holder(folder.path(), "a", options);
  options.host = "second";
  std::string watched;
  options.on_watch = [&](const LockHolder& found) { watched = found.host; };
  EXPECT_THAT(lock_refusal(folder.path(), "b", options), AllOf(HasSubstr("'first'"), HasSubstr("delete")));
  EXPECT_EQ(watched, "first");
  EXPECT_EQ(lock_refusal(folder.path(), "a", options), "") << "of the same job";
}

TEST(RunLock, WithoutLocksOrOnAnotherMachineADeadHolderIsTakenOver) {
  const tests::TemporaryFolder folder;
  write_lock(folder.path(), R"({"host":"gone","pid":7,"job":"a","beats":3})");
  const RunLock lock(folder.path(), "b", {.beat = milliseconds(5), .host = "here", .lock = no_locks});
  std::string text;
  std::getline(std::ifstream(folder / ".lock"), text);
  EXPECT_THAT(text, AllOf(HasSubstr("\"here\""), HasSubstr(std::to_string(::getpid()))));
}

// If two take over the lock of a dead holder at the same time, the one that writes last has it.
TEST(RunLock, WithoutLocksTheLastOfTwoThatTakeItHasIt) {
  const tests::TemporaryFolder folder;
  std::thread other([&] {
    while (!fs::exists(folder / ".lock") || fs::file_size(folder / ".lock") == 0) std::this_thread::yield();
    write_lock(folder.path(), R"({"host":"other","pid":7,"job":"b","beats":1})");
  });
  EXPECT_THAT(lock_refusal(folder.path(), "a", {.beat = std::chrono::seconds(5), .lock = no_locks}),
              HasSubstr("process 7 on 'other'"));
  other.join();
}

std::string file_to_replace;

// Before the file is locked, its holder deletes it and another process creates a new one.
int lock_after_replacement(int file) {
  if (const std::string path = std::exchange(file_to_replace, ""); !path.empty()) {
    fs::remove(path);
    std::ofstream(path).close();
  }
  return lock_whole_file(file);
}

TEST(RunLock, OfAFileThatWasReplacedMeanwhileIsTakenInTheNewOne) {
  const tests::TemporaryFolder folder;
  file_to_replace = folder / ".lock";
  const RunLock lock(folder.path(), "a", {.lock = lock_after_replacement});
  std::string text;
  std::getline(std::ifstream(folder / ".lock"), text);
  EXPECT_THAT(text, HasSubstr(std::to_string(::getpid())));
}

TEST(RunLock, DoesNotFollowLinks) {
  const tests::TemporaryFolder folder, other;
  const OtherProcess holder(other.path(), "first");
  fs::create_symlink(other / ".lock", folder / ".lock");
  ASSERT_FALSE(live_run_around(folder.path()));
  fs::remove(folder / ".lock");
  fs::create_symlink(folder / "victim", folder / ".lock");
  EXPECT_THAT(lock_refusal(folder.path(), "a"), HasSubstr("cannot lock"));
  EXPECT_FALSE(fs::exists(folder / "victim"));
}

// Runs |body| in a child: closing the file would release the lock of this process.
bool is_true_elsewhere(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 1 : 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

// After the loss of rank 0's machine the new rank 0 keeps the folder locked.
TEST(RunLock, AProcessThatSharesTakesOverWhenTheHolderEnds) {
  for (const bool has_locks : {true, false}) {
    const tests::TemporaryFolder folder;
    RunLockOptions options{.beat = milliseconds(5), .has_heartbeat = true};
    if (!has_locks) options.lock = no_locks;
    OtherProcess holder(folder.path(), "one", /*forks=*/false, options);
    options.host = "new";
    const RunLock lock(folder.path(), "one", options);
    holder.kill();
    const auto is_taken_over = [&] {
      std::string text;
      std::getline(std::ifstream(folder / ".lock"), text);
      return text.find("\"new\"") != std::string::npos;
    };
    for (int i = 0; i < 3000 && !is_true_elsewhere(is_taken_over); ++i) {  // a minute ends a hang
      std::this_thread::sleep_for(milliseconds(20));
    }
    ASSERT_TRUE(is_true_elsewhere(is_taken_over));
    if (has_locks) {
      EXPECT_TRUE(is_true_elsewhere([&] { return !lock_refusal(folder.path(), "another").empty(); }));
    }
  }
}

}  // namespace
}  // namespace concord
