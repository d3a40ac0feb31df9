// Heartbeats of a rank for its launcher, with timeouts that adapt to the measured durations.
//
// Example:
//   Heartbeat pulse(0);  // the first rank of this machine
//   pulse.enter(RankPhase::training);
//   for (int64_t step = 1; step <= 10; ++step) {
//     // ... a step ...
//     pulse.step_done(step);
//   }
//   pulse.enter(RankPhase::ending);
//
// Does nothing unless `concord launch` started the process. Threads: one at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "core/base/job_board.h"

namespace concord {

// An upper limit for the duration of the next piece of work, derived from the previous ones: three times the longest of
// the last hundred, at least one second. The first durations are longer than later ones (memory, caches, compiled
// kernels). Until kMinDurations of them are known the limit is ten times the longest, at least ten seconds; the first
// piece of work has no limit.
class AdaptiveTimeout {
 public:
  static constexpr size_t kMinDurations = 5;
  static constexpr size_t kRemembered = 100;
  static constexpr double kFactor = 3;
  static constexpr double kMinSeconds = 1;
  static constexpr double kFirstFactor = 10;
  static constexpr double kFirstMinSeconds = 10;

  void add(double seconds);
  std::optional<double> seconds() const;

 private:
  std::deque<double> last_;
};

class Heartbeat {
 public:
  explicit Heartbeat(int64_t local_rank);

  // Sets the phase of this rank. A phase keeps the timeout that was measured when it was entered before. start_up,
  // ending and writing (which waits for files) have no timeout, since their durations cannot be predicted.
  void enter(RankPhase phase);
  RankPhase phase() const { return phase_; }
  void beat();                             // a piece of the phase is done
  void step_done(int64_t step);            // like beat(), and records |step| as completed
  void saved(int64_t step, bool is_kept);  // a checkpoint is complete; is_kept: on disk, not in memory
  // Announces that a checkpoint is being written to disk. |folder|, which does not exist yet, appears when it is
  // complete, before any rank can call saved(). The launcher looks for it if the ranks are killed in between.
  void begins_to_write(int64_t step, const std::string& folder);
  // Call before the process exits in order to be replaced. Returns the number of replacements including this one, or
  // nullopt if it may not be replaced: there is no checkpoint to resume from, or it has been replaced |most| times over
  // all attempts of the job.
  std::optional<int64_t> begin_replacement(int64_t most);

 private:
  using Clock = std::chrono::steady_clock;
  void publish();

  std::optional<JobBoard> board_;
  RankStatus* notes_ = nullptr;  // owned by board_
  RankPhase phase_ = RankPhase::start_up;
  std::array<AdaptiveTimeout, kRankPhases> limits_;  // by phase
  Clock::time_point last_ = Clock::now();
};

// Enters a phase, and returns to the previous one when the scope ends.
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
