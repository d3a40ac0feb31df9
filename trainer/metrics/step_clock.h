// What this rank spends the time of its steps on, between two log lines.
//
// The thread that trains is always at one activity: compute, unless a Span says otherwise. Of the time of an activity
// that part counts as communication in which the thread was blocked in waits for other ranks. On a device the host does
// not wait; there the time of collectives on the device is subtracted from compute (see core/mesh/communication_time.h)
// and what is left of compute is the time of the host and of the device together. Evaluation and the writing of log
// lines are left out (Activity::other), and so are the first kWarmUpSteps steps of a process, which create
// communicators and fill caches.
//
// Costs two readings of the clock per Span. Threads: the one that trains.
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

  // The thread is at |activity| while it exists, whatever it was at before.
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

  // |job| outlives it.
  explicit StepClock(ParallelContext& job);

  // Before the first step of train(); forgets what was measured.
  void restart();
  // After step |number|, counted from 1.
  void end_step(int64_t number);
  // The times of all ranks since the last call. Nothing if no step after the warm-up has ended since. Every rank calls
  // it. Waits: for all ranks.
  std::optional<RankTable> take();

 private:
  using Clock = std::chrono::steady_clock;

  Activity enter(Activity activity);
  void charge();
  std::vector<RankTimes> gathered() const;

  ParallelContext& job_;
  const bool waits_on_host_;
  Activity activity_ = Activity::compute;
  Clock::time_point since_;             // what is before it is in |times_|
  CommunicationTime::Duration host_{};  // the same of the two clocks of communication
  CommunicationTime::Duration device_{};
  CommunicationTime::Duration not_charged_{};  // time of collectives on the device that is to be taken from compute
  RankTimes times_;
  int64_t warm_up_left_ = kWarmUpSteps;
  int64_t first_step_ = 0;  // of |times_|
  int64_t last_step_ = 0;
};

}  // namespace concord
