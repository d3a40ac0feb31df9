// Decides after each attempt whether the job is restarted or ends. A pure function. Threads: plain values.
//
// max_restarts counts failures without progress. Progress is a complete checkpoint, in memory or on disk, that is newer
// than the latest one at the previous failure: a job that fails every hour and saves every ten minutes continues.
// A rank that exits with kExitUsage would do so again, and is not restarted. If the job has saved before, its settings
// were right, and this is a failure like any other (for example, a file system that is not mounted).
#pragma once

#include <cstdint>
#include <string>

namespace concord {

// Exit codes for a scheduler, besides 0, 1 (failed, and would fail again) and 128 + signal (stopped by it, everything
// saved: requeue).
inline constexpr int kExitUsage = 2;       // the arguments or the settings are wrong: do not requeue
inline constexpr int kExitRequeue = 75;    // EX_TEMPFAIL: failed, but there is a checkpoint of this job to resume from
inline constexpr int kExitBadDevice = 71;  // EX_OSERR: a device or machine is at fault; requeue without it

// How an attempt ended.
struct AttemptEnd {
  bool succeeded = false;
  int stop_signal = 0;            // the signal that stopped the job; 0: none
  bool stopped_as_asked = false;  // all ranks have exited because of it
  bool can_start_again = true;    // no process of it is left, and its output is read
  int exit_code = 1;              // exit code of the rank that failed first; 1 if a signal has killed it
  int64_t saved_step = -1;        // step of the latest complete checkpoint in memory or on disk; -1: none
  int64_t kept_step = -1;         // step of the latest one on disk that this job has written; -1: none
};

struct RestartPolicy {
  int max_restarts = 0;
  int attempts = 0;         // number of attempts that have ended
  int failures = 0;         // number of failures since the last progress
  int64_t saved_step = -1;  // at the last failure

  struct Next {
    bool restart = false;
    int exit_code = 0;        // valid if it is not restarted
    bool progressed = false;  // since the previous failure
  };
  // Call after each attempt.
  Next after(const AttemptEnd& end);
};

}  // namespace concord
