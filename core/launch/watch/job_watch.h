// Watches the ranks of an attempt by what they write on the board: says when all of them train, and when one is silent
// for too long asks all of them where they are, says who keeps the others waiting, and names whom to kill.
//
// Threads: the launcher's one. It does a part of its work at each tick; it waits only, and briefly, for the stacks of a
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
    int first_rank = 0;  // of this machine
    int ranks = 0;       // that run on it; the board may have room for more
    int attempt = 0;
    bool kills = false;       // a rank that hangs is killed, because the job can go on without it
    bool has_others = false;  // on other machines, whose launchers may find the one that all wait for
  };
  using Say = std::function<void(const std::string& line)>;
  JobWatch(JobBoard* board, RecoveryLog* log, Options options, Say say);

  // About every HangWatch::kTick, with the processes in order; 0: has ended. Returns which of them to kill.
  bool is_training() const { return is_training_; }  // every rank has done a step
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
  std::optional<Clock::time_point> others_until_;  // the other launchers have the first word until then
};

}  // namespace concord
