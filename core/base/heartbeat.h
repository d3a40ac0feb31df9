// How a rank shows its launcher that it lives, and how long it may be silent: limits that are learned, not set.
//
// Example:
//   Heartbeat pulse(0);  // of the first rank of this machine
//   pulse.enter(RankPhase::training);
//   for (int64_t step = 1; step <= 10; ++step) {
//     // ... a step ...
//     pulse.step_done(step);
//   }
//   pulse.enter(RankPhase::ending);
//
// Without a launcher of ours it does nothing. Threads: one at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "core/base/job_board.h"

namespace concord {

// What a piece of work may take, from what those before it took: three times the longest of the last hundred, at least
// one second. The first ones are slower than any later one (memory, caches, compiled kernels) and say little: until
// there are kLeast of them the limit is ten times the longest, at least ten seconds; the very first has none.
class AdaptiveTimeout {
 public:
  static constexpr size_t kLeast = 5;
  static constexpr size_t kRemembered = 100;
  static constexpr double kFactor = 3;
  static constexpr double kMinSeconds = 1;
  static constexpr double kFirstFactor = 10;
  static constexpr double kFirstLeastSeconds = 10;

  void add(double seconds);
  std::optional<double> seconds() const;

 private:
  std::deque<double> last_;
};

class Heartbeat {
 public:
  explicit Heartbeat(int64_t local_rank);

  // What the rank does from now on. A phase has the limit that was learned when it was there before. start_up, ending
  // and writing, which waits for files, have none: what they take depends on more than what they took before.
  void enter(RankPhase phase);
  RankPhase phase() const { return phase_; }
  void beat();                             // a piece of the phase is done
  void step_done(int64_t step);            // the same, and it was a step of training
  void saved(int64_t step, bool is_kept);  // a checkpoint is complete; kept: on the disk, not in memory
  // A checkpoint that is to be kept is being written. |folder|, which does not exist yet, appears when it is complete,
  // before any rank can call saved(): the launcher looks for it if the ranks are killed in between.
  void begins_to_write(int64_t step, const std::string& folder);
  // Before the process ends in order to be replaced by another one: whether it may, and how often it has happened, this
  // time included. Only where there is a checkpoint to go on from, and at most |most| times in all attempts of a job.
  std::optional<int64_t> begin_replacement(int64_t most);

 private:
  using Clock = std::chrono::steady_clock;
  void publish();

  std::optional<JobBoard> board_;
  RankStatus* notes_ = nullptr;  // of board_
  RankPhase phase_ = RankPhase::start_up;
  std::array<AdaptiveTimeout, kRankPhases> limits_;  // by phase
  Clock::time_point last_ = Clock::now();
};

// Enters a phase, and on its end the one before it.
class PhaseScope {
 public:
  PhaseScope(Heartbeat* pulse, RankPhase phase) : pulse_(pulse), before_(pulse->phase()) { pulse_->enter(phase); }
  ~PhaseScope() {
    pulse_->beat();
    pulse_->enter(before_);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Heartbeat* pulse_;
  RankPhase before_;
};

}  // namespace concord
