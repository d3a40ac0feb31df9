#include "core/launch/watch/native_stacks.h"

#include <execinfo.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/process_list.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

// ---------------------------------------------------------------------------- in the process that is asked
// The handler calls only functions that are safe in one: no memory, no locks of the C library.

constexpr int kMaxFrames = 128;

std::atomic<int> stacks_fd = -1;
std::atomic<bool> is_printing = false;  // a thread is; the others wait for it so that lines do not mix
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void print_piece(int fd, const char* text) {
  size_t left = std::strlen(text);
  while (left > 0) {
    const ssize_t written = ::write(fd, text, left);
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text += written, left -= static_cast<size_t>(written);
  }
}

// Waits: a second at most; mixed lines are better than none.
bool begin_printing() {
  for (int tries = 0; is_printing.exchange(true, std::memory_order_acquire); ++tries) {
    if (tries == 1000) return false;
    const timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return true;
}

void print_own_stack(int) {
  const int error = errno;
  const int fd = stacks_fd.load();
  std::array<void*, kMaxFrames> frames{};
  const int count = ::backtrace(frames.data(), kMaxFrames);
  std::array<char, 16> name{};
  std::array<char, 24> number{};
  ::prctl(PR_GET_NAME, name.data());
  std::to_chars(number.data(), number.data() + number.size() - 1, ::syscall(SYS_gettid));
  const bool has_turn = begin_printing();
  for (const char* piece :
       {"thread ", static_cast<const char*>(number.data()), " (", static_cast<const char*>(name.data()), "):\n"})
    print_piece(fd, piece);
  // The first two are this handler and the kernel's frame of it.
  const int own = count > 2 ? 2 : 0;
  ::backtrace_symbols_fd(frames.data() + own, count - own, fd);
  if (has_turn) is_printing.store(false, std::memory_order_release);
  errno = error;
}

// ---------------------------------------------------------------------------------- in the process that asks

// What /proc says of a thread, or of a process.
struct SignalStatus {
  std::string name;
  char state = '?';
  uint64_t pending = 0, blocked = 0, caught = 0;  // bit n - 1 is signal n
};

SignalStatus read_signal_status(pid_t pid, const std::string& file) {
  SignalStatus status;
  const std::string text = read_process_file(pid, file.c_str());
  const auto value = [&](std::string_view name) {
    const size_t at = text.find(fmt::format("\n{}:\t", name));
    if (at == std::string::npos) return std::string();
    const size_t begin = at + name.size() + 3;
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  const auto mask = [&](std::string_view name) {
    const std::string digits = value(name);
    uint64_t bits = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
    return bits;
  };
  if (text.starts_with("Name:\t")) status.name = text.substr(6, text.find('\n') - 6);
  if (const std::string state = value("State"); !state.empty()) status.state = state[0];
  status.pending = mask("SigPnd");
  status.blocked = mask("SigBlk");
  status.caught = mask("SigCgt");
  return status;
}

uint64_t signal_bit() { return uint64_t{1} << (stacks_signal() - 1); }

struct AskedThread {
  pid_t id;
  std::string name;
  bool looked_done = false;  // at the last look
};

std::string file_of(pid_t thread) { return fmt::format("task/{}/status", thread); }

std::string silent_line(const AskedThread& thread, const std::string& why) {
  return fmt::format("thread {} ({}) {}", thread.id, one_line(thread.name, 64), why);
}

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> threads;
  std::error_code error;
  const std::filesystem::directory_iterator entries(fmt::format("/proc/{}/task", pid), error), end;
  if (error) return threads;
  for (auto entry = entries; entry != end && !error; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    if (thread > 0) threads.push_back(thread);
  }
  return threads;
}

// Why a thread in this state is not asked; empty: it is.
std::string reason_not_to_ask(const SignalStatus& status) {
  if (status.state == 'T' || status.state == 't') return "is stopped";
  if (status.state == 'Z' || status.state == 'X') return "has ended";
  if ((status.blocked & signal_bit()) != 0) return "blocks the signal";
  return "";
}

// The signal is pending until its handler starts, and blocked while it runs. For a moment between the two it is
// neither, so a thread has to look done twice.
bool has_answered(pid_t pid, AskedThread& thread) {
  const SignalStatus status = read_signal_status(pid, file_of(thread.id));
  const bool looks_done = ((status.pending | status.blocked) & signal_bit()) == 0;
  return std::exchange(thread.looked_done, looks_done) && looks_done;
}

std::vector<AskedThread> ask_all(pid_t pid, StacksAnswer* answer) {
  std::vector<AskedThread> asked;
  for (const pid_t id : threads_of(pid)) {
    const SignalStatus status = read_signal_status(pid, file_of(id));
    const AskedThread thread{.id = id, .name = status.name};
    std::string reason = reason_not_to_ask(status);
    if (reason.empty() && ::syscall(SYS_tgkill, pid, id, stacks_signal()) != 0)
      reason = fmt::format("cannot be asked: {}", std::strerror(errno));
    reason.empty() ? asked.push_back(thread) : answer->silent.push_back(silent_line(thread, reason));
  }
  return asked;
}

}  // namespace

int stacks_signal() { return SIGRTMIN + 5; }

void install_stacks_handler(int fd) {
  std::array<void*, 1> first{};
  ::backtrace(first.data(), 1);  // loads the unwinder, which takes memory
  stacks_fd = fd;
  struct sigaction action{};
  action.sa_handler = &print_own_stack;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (::sigaction(stacks_signal(), &action, nullptr) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot handle the signal for native stacks");
}

StacksAnswer request_stacks(pid_t pid, std::chrono::milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLook{2};
  StacksAnswer answer;
  if ((read_signal_status(pid, "status").caught & signal_bit()) == 0) {
    answer.silent.push_back(fmt::format("process {} has ended or does not print stacks", pid));
    return answer;
  }
  const Clock::time_point end = Clock::now() + limit;
  std::vector<AskedThread> waiting = ask_all(pid, &answer);
  for (bool is_over = false; !waiting.empty() && !is_over;) {
    is_over = Clock::now() >= end;
    std::this_thread::sleep_for(kLook);
    const size_t asked = waiting.size();
    std::erase_if(waiting, [&](AskedThread& thread) { return has_answered(pid, thread); });
    answer.answered += static_cast<int64_t>(asked - waiting.size());
  }
  for (const AskedThread& thread : waiting) {
    const SignalStatus status = read_signal_status(pid, file_of(thread.id));
    answer.silent.push_back(
        silent_line(thread, fmt::format("has not answered in {} ms; its state is {}", limit.count(), status.state)));
  }
  return answer;
}

}  // namespace concord
