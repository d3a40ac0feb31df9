// Watches the ranks of an attempt through the job board: reports when all of them train; when one is silent for too
// long, asks all of them where they are, reports which ranks keep the others waiting, and returns the ones to kill.
//
// Threads: launcher thread only. It does a part of its work at each tick, and waits only, briefly, for the stacks of a
// rank that hangs.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/recovery_log.h"
#include "core/launch/watch/hang_watch.h"

namespace concord {

class JobWatch {
 public:
  struct Options {
    int first_rank = 0;  // first rank of this machine
    int ranks = 0;       // number of ranks on this machine; the board may have room for more
    int attempt = 0;
    bool kills = false;       // a rank that hangs is killed, because the job can be restarted
    bool has_others = false;  // on other machines, whose launchers may find the one that all wait for
  };
  using Say = std::function<void(const std::string& line)>;
  JobWatch(JobBoard* board, RecoveryLog* log, Options options, Say say);

  bool is_training() const { return is_training_; }  // every rank has done a step
  // Call about every HangWatch::kTick, with the processes in order (0: has exited). Returns the indices to kill.
  std::vector<int> tick(std::span<const pid_t> processes);

 private:
  using Clock = std::chrono::steady_clock;

  void note_training();
  void ask();
  bool all_have_answered(std::span<const pid_t> processes) const;
  std::vector<int> explain(std::span<const pid_t> processes);
  void show_stacks(const std::vector<int>& indices, std::span<const pid_t> processes);
  HangEvidence evidence(int index, pid_t process) const;

  JobBoard* board_;
  RecoveryLog* log_;
  Options options_;
  Say say_;
  HangWatch watch_;
  bool is_training_ = false;
  std::optional<TimedOutRank> overdue_;  // while the ranks are asked
  Clock::time_point asked_;
  bool is_reported_ = false;                       // once per silence
  std::optional<Clock::time_point> others_until_;  // until then the other launchers may find the culprit
};

}  // namespace concord
