// A request to stop: SIGTERM (a scheduler wants the machine back), SIGINT (Ctrl-C) or SIGHUP (the terminal has closed;
// not where nohup ignores it). One rule for all of a run:
//
//   start-up    nothing is lost: the process exits immediately, with code 128 + signal
//   ready       like running, but another rank may still be starting and exit: this one then exits with the same code
//   running     the step, or the batch of an evaluation, that runs is finished, then the run saves and ends
//
// That has a time limit: after |grace_seconds| the process exits without saving, with exit code 1 and a message. A
// second signal ends it immediately; SIGTERM and SIGHUP often come twice, from a scheduler and from a launcher that
// passes it on, so within a second they count as one. What a save had written by then is not a checkpoint, and the next
// run removes it.
//
// While one exists it handles these signals and SIGALRM; afterwards the previous handlers are restored. One created
// while another exists shares its state (libconcordtorch.so and the program have one each). Threads: any.
#pragma once

#include <cstdint>
#include <string>

namespace concord {

class StopRequest {
 public:
  enum class Phase { start_up, ready, running };

  explicit StopRequest(Phase phase = Phase::running, int64_t grace_seconds = 0);  // 0: no time limit
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  void enter(Phase phase);
  Phase phase() const;
  bool requested() const { return signal() != 0; }
  int signal() const;  // that came first; 0: none
};

std::string stop_signal_name(int signal);  // "SIGTERM"

}  // namespace concord
