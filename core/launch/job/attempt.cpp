#include "core/launch/job/attempt.h"

#include <fmt/core.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/base/process_list.h"
#include "core/base/resources.h"

namespace concord {
namespace {

// SIGKILL takes effect immediately, except on a process that is stuck in the kernel (a dead network disk).
constexpr std::chrono::seconds kKillTime{10};
constexpr std::chrono::seconds kEcho{1};

int wait_status_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return W_EXITCODE(info.si_status, 0);
  return W_EXITCODE(0, info.si_status) | (info.si_code == CLD_DUMPED ? WCOREFLAG : 0);
}

// The stop signal that a process handled and reported with exit code 128 + signal; 0: none.
int signal_of_exit_code(int wait_status) {
  if (!WIFEXITED(wait_status)) return 0;
  const int signal = WEXITSTATUS(wait_status) - 128;
  return is_stop_signal(signal) ? signal : 0;
}

std::string describe(const ProcessEntry& entry) { return fmt::format("pid {} ({})", entry.pid, entry.name); }

}  // namespace

bool AttemptResult::succeeded() const {
  return start_error.empty() && unkillable.empty() &&
         std::all_of(ends.begin(), ends.end(), [](const ProcessEnd& end) { return end.wait_status == 0; });
}

bool AttemptResult::stopped_as_asked() const {
  return stop_signal != 0 && start_error.empty() && unkillable.empty() &&
         std::all_of(ends.begin(), ends.end(), [this](const ProcessEnd& end) {
           return end.wait_status == 0 || signal_of_exit_code(end.wait_status) == stop_signal;
         });
}

bool AttemptResult::stopped_before_failing() const {
  if (stop_signal == 0 || !start_error.empty() || !unkillable.empty()) return false;
  // Without a signal for the launcher: a process that has received it ends, and the others fail without it.
  const auto failure = ends.begin() + static_cast<std::ptrdiff_t>(first_failure.value_or(0));
  return !first_failure || std::any_of(ends.begin(), failure, [this](const ProcessEnd& end) {
    return signal_of_exit_code(end.wait_status) == stop_signal;
  });
}

Attempt::Attempt(SignalQueue* signals, SessionGuard* guard, OutputRelay* relay, AttemptOptions options)
    : signals_(signals),
      guard_(guard),
      relay_(relay),
      options_(std::move(options)),
      begin_(Clock::now()),
      next_tick_(begin_ + options_.period),
      next_order_(begin_ + options_.period) {}

AttemptResult Attempt::run(int count, const std::function<ProcessCommand(int index)>& command_of) {
  start_all(count, command_of);
  while (phase_ != Phase::over) step();
  OutputRelay::Deadline patience;  // for the reader of the output: a stopped job does not wait for long
  if (result_.stop_signal) patience = Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.grace);
  result_.output_abandoned = !drain_output(relay_, signals_, patience);
  relay_->detach_all();
  return std::move(result_);
}

void Attempt::start_all(int count, const std::function<ProcessCommand(int index)>& command_of) {
  for (int i = 0; i < count; ++i) {
    ProcessCommand command = command_of(i);
    command.guard_fd = guard_->fd();
    command.guard_slot = i;
    try {
      StartedProcess process = start(command);
      ranks_.push_back({process.pid, true});
      relay_->attach(i, &process);
    } catch (const std::system_error& error) {
      guard_->forget(i);
      result_.start_error = fmt::format("process {} of {} could not be started: {}", i + 1, count,
                                        what_is_short(error).value_or(error.what()));
      begin_killing();
      return;
    }
  }
}

StartedProcess Attempt::start(const ProcessCommand& command) {
  std::optional<StartedProcess> spare = options_.spares ? options_.spares->take(command.environment) : std::nullopt;
  if (spare) {
    guard_->adopt(command.guard_slot, spare->pid);
    return std::move(*spare);
  }
  std::optional<StartedProcess> forked = options_.zygote ? options_.zygote->start(command) : std::nullopt;
  return forked ? std::move(*forked) : start_process(command);
}

// Whether |process| is a child of this process, but not one of the attempt.
bool Attempt::is_other(pid_t process) const {
  return process == guard_->pid() || (options_.spares && options_.spares->owns(process)) ||
         (options_.zygote && options_.zygote->owns(process));
}

void Attempt::step() {
  const bool ticks = options_.tick && phase_ == Phase::running;
  OutputRelay::Deadline until = deadline_;
  if (ticks && (!until || next_tick_ < *until)) until = next_tick_;
  if (options_.orders && (!until || next_order_ < *until)) until = next_order_;
  const OutputRelay::Waited waited = relay_->wait(signals_->fd(), until);
  if (waited.signals) handle_signals();
  if (options_.orders && Clock::now() >= next_order_) obey();
  if (ticks && phase_ == Phase::running && Clock::now() >= next_tick_) tick();
  if (phase_ != Phase::over && deadline_ && Clock::now() >= *deadline_) deadline_reached();
}

void Attempt::tick() {
  next_tick_ = Clock::now() + options_.period;
  std::vector<pid_t> processes;
  for (const Rank& rank : ranks_) processes.push_back(rank.alive ? rank.pid : 0);
  for (const int index : options_.tick(processes)) {
    const Rank& rank = ranks_.at(static_cast<size_t>(index));
    if (!rank.alive) continue;
    result_.hung.push_back({.index = index, .pid = rank.pid});
    signal_group(rank, SIGKILL);
  }
}

void Attempt::obey() {
  next_order_ = Clock::now() + options_.period;
  const AttemptOrder order = options_.orders(result_);
  if (order == AttemptOrder::kill && (phase_ == Phase::running || phase_ == Phase::ending)) {
    begin_killing();
  } else if (order == AttemptOrder::end && phase_ == Phase::running) {
    begin_ending(SIGTERM);
  } else if (order == AttemptOrder::wait && phase_ == Phase::running) {
    begin_ending(0);
  }
}

void Attempt::handle_signals() {
  for (const SignalQueue::Entry& entry : signals_->take()) {
    if (entry.signal == SIGCHLD) {
      collect_ended(entry.sender);
    } else if (is_stop_signal(entry.signal)) {
      handle_stop_signal(entry.signal);
    } else {
      // Only to the rank: its children may not handle SIGUSR1 and would be killed by it.
      for (const Rank& rank : ranks_) {
        if (rank.alive) ::kill(rank.pid, entry.signal);
      }
    }
  }
}

void Attempt::handle_stop_signal(int signal) {
  const bool again = result_.stop_signal != 0;
  // A scheduler may send SIGTERM to the group and to the launcher, which counts as one. Two Ctrl-C count as two.
  const bool is_echo = again && signal != SIGINT && Clock::now() - stopped_ < kEcho;
  if (is_echo) return;
  if (!again) {
    result_.stop_signal = signal;
    stopped_ = Clock::now();
  }
  if (again || !any_alive()) {
    if (phase_ == Phase::running || phase_ == Phase::ending) begin_killing();
    return;
  }
  // No deadline: saving a checkpoint may take a while, and a trainer has its own limit. A second signal ends the wait.
  asked_ = true;
  signal_all_groups(signal);
}

// |first| is the process that the signal reported. If several have exited by now, it exited first.
void Attempt::collect_ended(pid_t first) {
  if (rank_of(first) < ranks_.size()) collect(P_PID, first);
  while (collect(P_ALL, 0)) {
  }
  if (any_alive() || phase_ == Phase::over) return;
  if (phase_ == Phase::running) begin_ending(0);
  look_for_leftovers();
}

bool Attempt::collect(int id_type, pid_t pid) {
  siginfo_t info{};
  if (::waitid(static_cast<idtype_t>(id_type), static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
    return false;
  if (info.si_pid == 0) return false;
  // Record first, then reap: until then the process id, and that of its group, cannot be reused.
  const size_t index = rank_of(info.si_pid);
  if (index < ranks_.size()) rank_ended(index, wait_status_of(info));
  if (options_.spares && options_.spares->owns(info.si_pid)) {
    options_.spares->ended(info.si_pid);
  }
  if (options_.zygote && options_.zygote->owns(info.si_pid)) options_.zygote->ended();
  ::waitpid(info.si_pid, nullptr, 0);
  return true;
}

void Attempt::rank_ended(size_t rank_index, int wait_status) {
  Rank& rank = ranks_[rank_index];
  const int stopped_by = signal_of_exit_code(wait_status);
  if (result_.stop_signal == 0 && !asked_) result_.stop_signal = stopped_by;  // only that rank received it
  const bool stopped = stopped_by != 0 && stopped_by == result_.stop_signal;
  const bool failed = wait_status != 0 && !stopped;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  if (failed) signal_group(rank, phase_ == Phase::killing ? SIGKILL : SIGTERM);
  rank.alive = false;
  guard_->forget(static_cast<int>(rank_index));
  const ProcessEnd end{static_cast<int>(rank_index), rank.pid, wait_status, seconds, asked_};
  if (failed && !asked_) {
    if (options_.failed) options_.failed(end);
    result_.first_failure = result_.ends.size();
    note_stopped();
    next_order_ = Clock::now();  // whoever gives them has to know
  }
  result_.ends.push_back(end);
  if (phase_ != Phase::running) return;
  // If a stop was already forwarded, the others have their signal and, after a failure, a time limit too. If a rank was
  // stopped by someone else, the others have agreed with it and are about to exit.
  if (failed && options_.kills_at_once && !asked_) {
    begin_killing();
  } else if (failed) {
    begin_ending(asked_ ? 0 : SIGTERM);
  }
  if (stopped && !asked_) begin_ending(0);
}

// The others wait for a stopped rank and then fail: the failing rank is not the cause.
void Attempt::note_stopped() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    if (rank.alive && is_stopped(rank.pid)) result_.stopped.push_back({.index = static_cast<int>(i), .pid = rank.pid});
  }
}

void Attempt::begin_ending(int signal) {
  phase_ = Phase::ending;
  deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.grace);
  if (signal == 0) return;
  asked_ = true;
  signal_all_groups(signal);
}

void Attempt::begin_killing() {
  phase_ = Phase::killing;
  deadline_ = Clock::now() + kKillTime;
  asked_ = true;
  signal_all_groups(SIGKILL);
  if (!any_alive()) look_for_leftovers();
}

void Attempt::deadline_reached() {
  if (phase_ == Phase::ending && any_alive() && !asked_) {
    begin_ending(SIGTERM);  // a rank was stopped, and these have not stopped with it
    return;
  }
  if (phase_ == Phase::ending) {
    begin_killing();
    return;
  }
  for (const ProcessEntry& entry : list_processes()) {
    if (entry.parent == ::getpid() && !is_other(entry.pid)) result_.unkillable.push_back(describe(entry));
  }
  phase_ = Phase::over;
}

// This process is a subreaper: orphaned descendants become its children, so none is lost.
void Attempt::look_for_leftovers() {
  bool found = false;
  for (const ProcessEntry& entry : list_processes()) {
    if (entry.parent != ::getpid() || is_other(entry.pid)) continue;
    found = true;
    if (phase_ != Phase::killing || entry.state == 'Z') continue;
    const std::string text = describe(entry);
    if (std::find(result_.left.begin(), result_.left.end(), text) == result_.left.end()) result_.left.push_back(text);
    ::kill(entry.pid, SIGKILL);
  }
  if (!found) phase_ = Phase::over;
}

void Attempt::signal_group(const Rank& rank, int signal) const { ::kill(-rank.pid, signal); }

void Attempt::signal_all_groups(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.alive) signal_group(rank, signal);
  }
}

bool Attempt::any_alive() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.alive; });
}

// ranks_.size() if |pid| is not one of them.
size_t Attempt::rank_of(pid_t pid) const {
  const auto found =
      std::find_if(ranks_.begin(), ranks_.end(), [pid](const Rank& rank) { return rank.alive && rank.pid == pid; });
  return static_cast<size_t>(found - ranks_.begin());
}

bool drain_output(OutputRelay* relay, SignalQueue* signals, OutputRelay::Deadline deadline) {
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    const bool backlog = relay->has_backlog();
    const OutputRelay::Waited waited = relay->wait(signals->fd(), backlog ? deadline : now);
    if (!waited.anything && !backlog) return true;
    if (!waited.anything && deadline && now >= *deadline) return false;
    if (!waited.signals) continue;
    for (const SignalQueue::Entry& entry : signals->take()) {
      if (is_stop_signal(entry.signal)) return false;
    }
  }
}

}  // namespace concord
