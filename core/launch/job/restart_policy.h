// What follows an attempt of a job: its end, or another attempt. A pure function of what is known then, so that it can
// be tested for every case. Threads: plain values.
//
// max_restarts counts failures without progress. Progress is a complete checkpoint, in memory or on the disk, that is
// newer than the newest one at the failure before; a job that fails every hour and saves every ten minutes goes on.
// A rank that ends with kExitUsage would do so again, and is not restarted. Where the job has saved before, its
// settings were right: then that is a failure like any other (a disk that is not there, say).
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
  int stop_signal = 0;            // a signal that stops the job came; 0: none
  bool stopped_as_asked = false;  // all ranks have ended with it
  bool can_start_again = true;    // nothing of it is left, and somebody reads the output
  int exit_code = 1;              // of the rank that failed first; 1 as well if a signal has killed it
  int64_t saved_step = -1;        // of the newest complete checkpoint in memory or on the disk; -1: none
  int64_t kept_step = -1;         // of the newest one on the disk that this job has written
};

struct RestartPolicy {
  int max_restarts = 0;
  int attempts = 0;         // that have ended
  int failures = 0;         // since there was progress
  int64_t saved_step = -1;  // at the last failure

  struct Next {
    bool restart = false;
    int exit_code = 0;        // where it does not
    bool progressed = false;  // since the failure before
  };
  // To be called after each attempt.
  Next after(const AttemptEnd& end);
};

}  // namespace concord
