#include "trainer/stop_request.h"

#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

namespace concord {
namespace {

constexpr std::array kStopSignals = {SIGTERM, SIGINT, SIGHUP};
constexpr int64_t kSameSignalMs = 1000;

// Everything that the handlers touch: they may run in any thread, at any instruction.
std::atomic<int> received = 0;
std::atomic<int64_t> received_at_ms = 0;
std::atomic<StopRequest::Phase> current_phase = StopRequest::Phase::running;
std::atomic<unsigned> grace = 0;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free &&
              std::atomic<StopRequest::Phase>::is_always_lock_free);

int living = 0;  // instances of this class
std::array<struct sigaction, kStopSignals.size()> before_stop;
struct sigaction before_alarm;

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void end_by(int signal) {
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // delivered when the handler has returned
}

void on_stop(int signal) {
  const int error = errno;
  int none = 0;
  if (current_phase == StopRequest::Phase::start_up) ::_exit(128 + signal);
  if (received.compare_exchange_strong(none, signal)) {
    received_at_ms = now_ms();
    if (const unsigned seconds = grace; seconds > 0) ::alarm(seconds);
  } else if (signal == SIGINT || now_ms() - received_at_ms >= kSameSignalMs) {
    end_by(signal);
  }
  errno = error;
}

void on_alarm(int) {
  constexpr std::string_view kText =
      "concord: exit_signal_grace expired while this rank was still working or waiting for another rank; exiting "
      "without saving\n";
  if (::write(STDERR_FILENO, kText.data(), kText.size()) < 0) ::_exit(1);  // nowhere to report it
  ::_exit(1);
}

void install() {
  struct sigaction action{};
  action.sa_flags = SA_RESTART;
  action.sa_handler = on_stop;
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i], &action, &before_stop[i]);
    const bool is_nohup = kStopSignals[i] == SIGHUP && before_stop[i].sa_handler == SIG_IGN;
    if (is_nohup) sigaction(SIGHUP, &before_stop[i], nullptr);
  }
  action.sa_handler = on_alarm;
  sigaction(SIGALRM, &action, &before_alarm);
}

void uninstall() {
  ::alarm(0);
  for (size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], &before_stop[i], nullptr);
  sigaction(SIGALRM, &before_alarm, nullptr);
}

}  // namespace

StopRequest::StopRequest(Phase phase, int64_t grace_seconds) {
  if (living++ > 0) return;
  received = 0;
  grace = static_cast<unsigned>(grace_seconds);
  enter(phase);
  install();
}

StopRequest::~StopRequest() {
  if (--living == 0) uninstall();
}

void StopRequest::enter(Phase phase) { current_phase = phase; }

StopRequest::Phase StopRequest::phase() const { return current_phase; }

int StopRequest::signal() const { return received; }

std::string stop_signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "a signal";
}

}  // namespace concord
