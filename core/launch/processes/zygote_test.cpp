#include "core/launch/processes/zygote.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "core/launch/processes/zygote_process.h"
#include "platform/base/sanitizer.hpp"

namespace concord {
namespace {

using testing::HasSubstr;

// This program is the zygote of its tests: it becomes one before main, and its ranks say what they are.
const bool kIsZygote = [] {
  if (!is_zygote()) return false;
  if (std::getenv("TEST_SECOND_THREAD") != nullptr) std::thread([] { ::pause(); }).detach();
  if (std::getenv("TEST_STOPPED") != nullptr) ::raise(SIGSTOP);
  fork_ranks();
  const char *rank = std::getenv("RANK"), *left = std::getenv("TEST_LEFT"), *zygote = std::getenv(kZygoteVariable);
  fmt::print("rank {} of {}, session {}, left {}, zygote {}\n", rank, ::getppid(),
             ::getsid(0) == ::getpid() ? "own" : "foreign", left == nullptr ? "nothing" : left,
             zygote == nullptr ? "no" : "yes");
  fmt::print(stderr, "error of rank {}\n", rank);
  std::fflush(nullptr);
  char byte = 0;
  ::_exit(::read(0, &byte, 1) == 0 ? 40 + std::atoi(rank) : 1);
}();

std::string read_all(int fd) {
  std::string text;
  char buffer[512];
  for (;;) {
    pollfd wait{fd, POLLIN, 0};
    ::poll(&wait, 1, -1);
    const ssize_t length = ::read(fd, buffer, sizeof buffer);
    if (length <= 0) return text;
    text.append(buffer, static_cast<size_t>(length));
  }
}

class ZygoteTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CONCORD_UNDER_ASAN || CONCORD_UNDER_TSAN) GTEST_SKIP() << "a sanitizer has threads of its own";
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  void TearDown() override { ::prctl(PR_SET_CHILD_SUBREAPER, 0); }

  ProcessCommand command(int rank, std::vector<std::string> environment = {}) {
    environment.push_back(fmt::format("RANK={}", rank));
    return {.program = std::filesystem::read_symlink("/proc/self/exe"),
            .arguments = {"zygote_test"},
            .environment = std::move(environment),
            .guard_fd = guard_.fd(),
            .guard_slot = rank};
  }
  static int exit_code(const StartedProcess& process) {
    int status = 0;
    EXPECT_EQ(::waitpid(process.pid, &status, 0), process.pid) << "it is no child of the launcher";
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  SignalQueue signals_;
  SessionGuard guard_{3, "zygote-test"};
  Zygote zygote_{true, &guard_, 2, &signals_};
};

TEST_F(ZygoteTest, ForksRanksThatAreChildrenOfTheLauncherWithStreamsAndVariablesOfTheirOwn) {
  std::optional<StartedProcess> first = zygote_.start(command(0, {"TEST_LEFT=this"}));
  ASSERT_TRUE(first);
  std::optional<StartedProcess> second = zygote_.start(command(1));
  ASSERT_TRUE(second);
  EXPECT_EQ(read_all(first->out.get()), fmt::format("rank 0 of {}, session own, left this, zygote no\n", ::getpid()));
  EXPECT_EQ(read_all(second->out.get()),
            fmt::format("rank 1 of {}, session own, left nothing, zygote no\n", ::getpid()));
  EXPECT_EQ(read_all(second->err.get()), "error of rank 1\n");
  EXPECT_EQ(exit_code(*first), 40);
  EXPECT_EQ(exit_code(*second), 41);
}

TEST_F(ZygoteTest, IsNoneWhereItHasMoreThreadsThanOne) {
  EXPECT_FALSE(zygote_.start(command(0, {"TEST_SECOND_THREAD=1"})));
  EXPECT_FALSE(zygote_.start(command(1))) << "it is not tried twice";
}

TEST_F(ZygoteTest, ThatIsStoppedWhileItLoadsIsNotWaitedFor) {
  EXPECT_FALSE(zygote_.start(command(0, {"TEST_STOPPED=1"})));
  EXPECT_FALSE(zygote_.owns(::waitpid(-1, nullptr, WNOHANG))) << "it is killed";
}

TEST_F(ZygoteTest, ThatHasEndedIsNone) {
  ProcessCommand absent = command(0);
  absent.program = "/nonexistent/program";
  EXPECT_FALSE(zygote_.start(absent));
  EXPECT_FALSE(zygote_.start(command(0)));
}

TEST_F(ZygoteTest, ASignalForTheLauncherIsNotWaitedOut) {
  ::raise(SIGUSR1);
  EXPECT_FALSE(zygote_.start(command(0)));
}

}  // namespace
}  // namespace concord
