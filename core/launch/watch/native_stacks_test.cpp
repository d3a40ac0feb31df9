#include "core/launch/watch/native_stacks.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

#include "core/launch/processes/pipe.h"

// Exported, so that its name can be found. Never returns.
extern "C" [[gnu::visibility("default"), gnu::noinline]] void native_stacks_test_hangs_here(std::atomic<int>* ready);
extern "C" void native_stacks_test_hangs_here(std::atomic<int>* ready) {
  ++*ready;
  for (;;) ::pause();
}

namespace concord {
namespace {

using namespace std::chrono_literals;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kLong = 60s;  // ends a hang; no verdict depends on it
const std::string kFunction = "native_stacks_test_hangs_here+0x";
constexpr int kLongMilliseconds = 60'000;

// A process with a second thread, which hangs. It says on a pipe when it does so; its stacks go to the same pipe.
class HangingChild {
 public:
  explicit HangingChild(const std::function<void()>& in_thread = [] {}, bool has_handler = true) {
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      run(in_thread, has_handler);
    }
    pipe_.write.reset();
    char byte = 0;
    EXPECT_EQ(::read(pipe_.read.get(), &byte, 1), 1);
  }
  ~HangingChild() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  pid_t pid() const { return child_; }
  bool is_running() const { return ::waitpid(child_, nullptr, WNOHANG) == 0; }
  // What it has printed so far, at least until |wanted|.
  std::string printed(const std::string& wanted) {
    std::string text;
    for (std::array<char, 4096> piece{}; text.find(wanted) == std::string::npos;) {
      pollfd entry{.fd = pipe_.read.get(), .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, kLongMilliseconds) != 1) break;
      const ssize_t length = ::read(pipe_.read.get(), piece.data(), piece.size());
      if (length > 0) text.append(piece.data(), static_cast<size_t>(length));
    }
    return text;
  }

 private:
  [[noreturn]] void run(const std::function<void()>& in_thread, bool has_handler) {
    if (has_handler) install_stacks_handler(pipe_.write.get());
    std::atomic<int> ready = 0;
    std::thread([&] {
      ::pthread_setname_np(::pthread_self(), "hanging");
      in_thread();
      native_stacks_test_hangs_here(&ready);
    }).detach();
    while (ready == 0) std::this_thread::yield();
    if (::write(pipe_.write.get(), "r", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }

  Pipe pipe_ = make_pipe();
  pid_t child_ = -1;
};

TEST(NativeStacks, OfAllThreadsArePrintedWithTheFunctionInWhichOneHangs) {
  HangingChild child;
  const StacksAnswer answer = request_stacks(child.pid(), kLong);
  EXPECT_EQ(answer.answered, 2);
  EXPECT_THAT(answer.silent, IsEmpty());
  const std::string text = child.printed(kFunction);
  EXPECT_THAT(text, ContainsRegex("thread [0-9]+ \\(hanging\\):\n"));
  const size_t hanging = text.find("(hanging)"), function = text.find(kFunction);
  ASSERT_NE(function, std::string::npos) << text;
  EXPECT_LT(hanging, function) << text;
  EXPECT_EQ(text.find("thread ", hanging), text.find("thread ", function)) << "in the stack of another thread\n"
                                                                           << text;
  EXPECT_THAT(text, ContainsRegex("libc.so.6\\(pause\\+0x"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line) && !lines.eof();)
    EXPECT_TRUE(line.starts_with("thread ") || line.ends_with("]")) << "lines of threads are mixed: " << line;
  EXPECT_TRUE(child.is_running());
}

TEST(NativeStacks, CanBeAskedForAgain) {
  HangingChild child;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(request_stacks(child.pid(), kLong).answered, 2);
    EXPECT_THAT(child.printed(kFunction), HasSubstr(kFunction));
  }
}

TEST(NativeStacks, OfAStoppedProcessAreNotWaitedFor) {
  HangingChild child;
  ::kill(child.pid(), SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(child.pid(), &status, WUNTRACED), child.pid());
  const StacksAnswer answer = request_stacks(child.pid(), kLong);
  EXPECT_EQ(answer.answered, 0);
  ASSERT_EQ(answer.silent.size(), 2u);
  EXPECT_THAT(answer.silent, testing::Each(ContainsRegex("thread [0-9]+ \\(.*\\) is stopped")));
}

TEST(NativeStacks, OfAThreadThatBlocksSignalsAreMissingAndItIsNamed) {
  HangingChild child([] {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  });
  const StacksAnswer answer = request_stacks(child.pid(), kLong);
  EXPECT_EQ(answer.answered, 1);
  EXPECT_THAT(answer.silent, testing::ElementsAre(ContainsRegex("thread [0-9]+ \\(hanging\\) blocks the signal")));
}

// As in a handler that does not return: the signal stays pending.
TEST(NativeStacks, OfAThreadThatNeverAnswersAreGivenUp) {
  HangingChild child([] {
    struct sigaction action{};
    action.sa_handler = [](int) {
      for (;;) ::pause();
    };
    ::sigaction(stacks_signal(), &action, nullptr);
  });
  const StacksAnswer answer = request_stacks(child.pid(), 50ms);
  EXPECT_EQ(answer.answered, 0);
  EXPECT_THAT(answer.silent, testing::Each(HasSubstr("has not answered in 50 ms; its state is S")));
  EXPECT_EQ(answer.silent.size(), 2u);
}

TEST(NativeStacks, AProcessThatDoesNotPrintThemIsLeftAlone) {
  HangingChild child([] {}, false);
  const StacksAnswer answer = request_stacks(child.pid(), kLong);
  EXPECT_EQ(answer.answered, 0);
  EXPECT_THAT(answer.silent, testing::ElementsAre(HasSubstr("does not print stacks")));
  EXPECT_TRUE(child.is_running());
}

TEST(NativeStacks, OfAProcessThatHasEndedAreNone) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);  // still there, as a zombie
  EXPECT_EQ(request_stacks(child, kLong).answered, 0);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(request_stacks(child, kLong).silent.size(), 1u);
}

}  // namespace
}  // namespace concord
