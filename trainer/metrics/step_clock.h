// Times of this rank's steps by activity, between two log lines.
//
// The training thread is always in one activity: compute, unless a Span sets a different one. Time in which the thread
// is blocked in waits for other ranks counts as communication. On a device the host does not wait; there the time of
// collectives on the device is subtracted from compute (see core/mesh/communication_time.h), and the rest of compute is
// the time of host and device together. Evaluation and log lines are excluded (Activity::other), and so are the first
// kWarmUpSteps steps of a process, which create communicators and fill caches.
//
// Costs two clock readings per Span. Threads: training thread only.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "core/mesh/parallel_context.h"
#include "trainer/report/rank_times.h"

namespace concord {

class StepClock {
 public:
  static constexpr int64_t kWarmUpSteps = 5;
  enum class Activity { compute, data, saving, other };

  // Sets the activity of the thread during its lifetime, and then restores the previous one.
  class Span {
   public:
    Span(StepClock& clock, Activity activity) : clock_(clock), before_(clock.enter(activity)) {}
    ~Span() { clock_.enter(before_); }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    StepClock& clock_;
    Activity before_;
  };

  // |job| must outlive the clock.
  explicit StepClock(ParallelContext& job);

  // Discards all measurements. Call before the first step of train().
  void restart();
  // Call after step |number|, counted from 1.
  void end_step(int64_t number);
  // Returns the time of this process's steps so far without waiting for other ranks, in seconds, including the warm-up.
  // Saves, evaluations and log lines are excluded.
  double own_seconds();
  // Returns the times of all ranks since the last call; nullopt if no step after the warm-up has completed since. Every
  // rank calls it. Waits: for all ranks.
  std::optional<RankTable> take();

 private:
  using Clock = std::chrono::steady_clock;

  Activity enter(Activity activity);
  void charge();
  std::vector<RankTimes> gathered() const;

  ParallelContext& job_;
  const bool waits_on_host_;
  Activity activity_ = Activity::compute;
  Clock::time_point since_;             // time before it is in |times_|
  CommunicationTime::Duration host_{};  // |since_| on the two clocks of communication
  CommunicationTime::Duration device_{};
  CommunicationTime::Duration
      not_charged_{};  // time of collectives on the device that is not yet subtracted from compute
  RankTimes times_;
  double own_seconds_ = 0;
  int64_t warm_up_left_ = kWarmUpSteps;
  int64_t first_step_ = 0;  // first step of |times_|
  int64_t last_step_ = 0;
};

}  // namespace concord
