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
  ~Zygote();  // kills it, and waits for its end
  Zygote(const Zygote&) = delete;
  Zygote& operator=(const Zygote&) = delete;

  // A rank that is forked: a child of this process, which must be a subreaper. Nothing: it has to be started. Waits:
  // the first time until the zygote is ready; not beyond the next signal for the launcher, nor for one that is stopped
  // (SIGSTOP, a debugger) for as long as a rank may not be.
  std::optional<StartedProcess> start(const ProcessCommand& command);

  bool owns(pid_t process) const { return process_.pid > 0 && process == process_.pid; }
  void ended();  // to be called before its number can be reused

 private:
  bool is_ready(ProcessCommand command);
  bool receive(void* to, size_t bytes, std::chrono::steady_clock::duration limit, bool heeds_signals);
  bool await(std::chrono::steady_clock::time_point end, bool heeds_signals);
  void drop();

  bool is_wanted_;
  SessionGuard* guard_;
  int slot_;
  const SignalQueue* signals_;
  StartedProcess process_;  // its output is kept open and not read: ranks that are started instead say the same
  UniqueFd control_;
};

}  // namespace concord
