// The launcher's side of a zygote: a process that is started like a rank, loads what ranks need and forks them.
// libtorch takes 0.4 s of a core to load: with a zygote once per machine, and restarted ranks do not load it again.
//
// If there is no zygote, ranks are started as separate programs. Threads: launcher thread only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>

#include "core/launch/processes/process_start.h"
#include "core/launch/processes/session_guard.h"
#include "core/launch/processes/signal_queue.h"

namespace concord {

class Zygote {
 public:
  // |guard| and |signals| outlive it; |slot| of the guard is its own. Starts nothing.
  Zygote(bool is_wanted, SessionGuard* guard, int slot, const SignalQueue* signals);
  ~Zygote();  // kills the process and waits for its exit
  Zygote(const Zygote&) = delete;
  Zygote& operator=(const Zygote&) = delete;

  // Forks a rank, a child of this process, which must be a subreaper. Returns nullopt if the rank must be started as a
  // program. Waits: the first call until the zygote is ready, but only until the next signal for the launcher, or until
  // the zygote has been stopped (SIGSTOP, a debugger) for HangWatch::kStoppedLimit.
  std::optional<StartedProcess> start(const ProcessCommand& command);

  bool owns(pid_t process) const { return process_.pid > 0 && process == process_.pid; }
  void ended();  // call when the process has exited, before its pid can be reused

 private:
  bool is_ready(ProcessCommand command);
  bool receive(void* to, size_t bytes, std::chrono::steady_clock::duration limit, bool heeds_signals);
  bool await(std::chrono::steady_clock::time_point end, bool heeds_signals);
  void drop();

  bool is_wanted_;
  SessionGuard* guard_;
  int slot_;
  const SignalQueue* signals_;
  StartedProcess process_;  // its output stays open and unread: ranks that are started instead print the same errors
  UniqueFd control_;
};

}  // namespace concord
