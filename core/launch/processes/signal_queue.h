// The signals that a launcher handles, in the order in which they arrived, readable from a descriptor.
//
// While it exists, SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 of this process go into the queue and SIGPIPE
// is ignored; the destructor restores what was before. SIGHUP stays ignored where it was (nohup). One at a time per
// process. A handler and a pipe rather than signalfd: that needs the signals blocked in every thread of the process.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <vector>

#include "core/launch/processes/pipe.h"

namespace concord {

// Whether |signal| stops a job.
inline bool is_stop_signal(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

class SignalQueue {
 public:
  struct Entry {
    int signal;
    pid_t sender;  // for SIGCHLD the process that exited; the kernel keeps only the first of several at the same time
  };

  SignalQueue();  // throws std::system_error, std::logic_error if there is one already
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return pipe_.read.get(); }  // readable when take() has something
  std::vector<Entry> take();                   // never waits

  // Puts signals back to their defaults in a new process, between fork and exec, with every signal blocked. Safe after
  // fork.
  static void reset_in_child();

 private:
  static constexpr std::array<int, 6> kQueued = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

  Pipe pipe_;
  std::array<struct sigaction, 6> before_{};
  struct sigaction pipe_before_{};
  sigset_t mask_before_{};
};

}  // namespace concord
