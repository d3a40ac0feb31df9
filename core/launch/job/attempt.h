// One start of all processes of this machine, watched until none of them is left.
//
// A process that fails (an exit code other than 0, or a signal) ends the attempt: the others, and all that they have
// started, get SIGTERM and, after the grace time, SIGKILL. If all exit with code 0, processes that they have left
// running get the grace time to end on their own. So every attempt ends; only a process that the kernel cannot kill
// remains, and is named.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/launch/processes/output_relay.h"
#include "core/launch/processes/process_start.h"
#include "core/launch/processes/session_guard.h"
#include "core/launch/processes/signal_queue.h"
#include "core/launch/processes/spare_pool.h"
#include "core/launch/processes/zygote.h"

namespace concord {

// How one process exited.
struct ProcessEnd {
  int index = 0;  // among the processes of this machine
  pid_t pid = 0;
  int wait_status = 0;     // as waitpid gives it
  double seconds = 0;      // since the attempt began
  bool was_asked = false;  // the launcher had sent it a signal before
};

struct AttemptResult {
  std::vector<ProcessEnd> ends;  // in the order in which they exited
  // The other processes that were stopped (SIGSTOP, a debugger) when the first one failed: their |index| and |pid|.
  std::vector<ProcessEnd> stopped;
  std::vector<ProcessEnd> hung;  // those that |tick| told it to kill: their |index| and |pid|
  std::optional<size_t>
      first_failure;              // into ends: the one that failed on its own, before the launcher stopped the others
  int stop_signal = 0;            // the job, or a rank of it, was stopped with this signal; 0 if it was not
  bool output_abandoned = false;  // the last of the output was not read by anyone, and was dropped
  std::string start_error;        // why a process could not be started; empty if all could
  std::vector<std::string> left;  // "pid 12 (name)": killed after the grace time, though its rank had ended
  std::vector<std::string> unkillable;  // "pid 12 (name)": still there long after SIGKILL
  bool succeeded() const;               // every process with exit code 0
  bool stopped_as_asked() const;        // every process with exit code 0 or 128 + stop_signal: a trainer that has saved
  bool stopped_before_failing() const;  // the stop signal came first; what follows it may be a failure
};

// An order to stop the processes, in ascending strength: none; wait: they have agreed to exit, and get the grace time
// for it; end: SIGTERM, and SIGKILL after the grace time; kill: SIGKILL.
enum class AttemptOrder { none, wait, end, kill };

struct AttemptOptions {
  std::chrono::duration<double> grace{5};  // between SIGTERM and SIGKILL
  bool kills_at_once = false;              // after a failure the others are killed, without SIGTERM before
  // Called about every |period| while no process has failed, with the processes in order (0: has ended). Those whose
  // index it returns are killed.
  std::function<std::vector<int>(std::span<const pid_t> processes)> tick = {};
  std::chrono::milliseconds period{50};
  // Called at once when a process fails before the others are ended.
  std::function<void(const ProcessEnd& end)> failed = {};
  // Called about every |period| until none is left, and at once after a failure.
  std::function<AttemptOrder(const AttemptResult& so_far)> orders = {};
  SparePool* spares = nullptr;  // whose processes become ranks before new ones are started; null: there are none
  Zygote* zygote = nullptr;     // which forks the new ones, if it can; null: all are started
};

class Attempt {
 public:
  Attempt(SignalQueue* signals, SessionGuard* guard, OutputRelay* relay, AttemptOptions options);

  // Starts |count| processes and returns when they have exited. The commands' guard is filled in here.
  AttemptResult run(int count, const std::function<ProcessCommand(int index)>& command_of);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { running, ending, killing, over };

  struct Rank {
    pid_t pid = 0;
    bool alive = false;
  };

  void start_all(int count, const std::function<ProcessCommand(int index)>& command_of);
  StartedProcess start(const ProcessCommand& command);
  bool is_other(pid_t process) const;
  void step();
  void tick();
  void obey();
  void handle_signals();
  void handle_stop_signal(int signal);
  void collect_ended(pid_t first);
  bool collect(int id_type, pid_t pid);
  void rank_ended(size_t rank_index, int wait_status);
  void note_stopped();
  void begin_ending(int signal);
  void begin_killing();
  void deadline_reached();
  void look_for_leftovers();
  void signal_group(const Rank& rank, int signal) const;
  void signal_all_groups(int signal);
  bool any_alive() const;
  size_t rank_of(pid_t pid) const;

  SignalQueue* signals_;
  SessionGuard* guard_;
  OutputRelay* relay_;
  AttemptOptions options_;
  Clock::time_point begin_;
  Clock::time_point next_tick_;
  Clock::time_point next_order_;
  Phase phase_ = Phase::running;
  OutputRelay::Deadline deadline_;
  Clock::time_point stopped_;  // when stop_signal came
  bool asked_ = false;         // a signal that ends processes was sent to all of them
  std::vector<Rank> ranks_;
  AttemptResult result_;
};

// Writes out all that is still to be written, and reads what ended processes have left in their pipes. Waits as long as
// the other side takes to read it, at most until |deadline|; SIGINT, SIGTERM and SIGHUP end that, too. False if some is
// lost.
bool drain_output(OutputRelay* relay, SignalQueue* signals, OutputRelay::Deadline deadline);

}  // namespace concord
