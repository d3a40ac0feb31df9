// Times of the parts of a step, compared over ranks: Megatron's timers (timing_log_level, timing_log_option).
//
// Unlike StepClock, which always measures and costs nothing, a timer synchronizes the device at its start and its end,
// so that each part has its own time; a run with timers is therefore slower on devices. Level 0 measures nothing, 1 all
// parts except forward and backward, 2 also these: the computations of all micro-batches of a step, without waits for
// other stages. Threads: training thread only.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/mesh/parallel_context.h"
#include "core/schedule/action.h"
#include "trainer/arguments/run_arguments.h"
#include "trainer/report/history.h"

namespace concord {

enum class StepPart { forward_backward, reduce, optimizer, data, save, forward, backward };
inline constexpr size_t kStepParts = 7;
const char* to_string(StepPart part);

class StepTimers {
 public:
  // |job| must outlive the timers.
  StepTimers(ParallelContext& job, int64_t level, TimingLogOption option);

  // Measures its lifetime.
  class Span {
   public:
    Span(StepTimers& timers, StepPart part);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    StepTimers& timers_;
    StepPart part_;
    std::chrono::steady_clock::time_point begin_;
  };

  // For Executor::watch: adds to forward or backward.
  void watch(const Action& action, bool begins);

  // Receives every part and action, at any level: its name when it begins, and its name and time when it ends. Empty
  // functions remove the listener.
  using Time = std::chrono::steady_clock::time_point;
  using Begun = std::function<void(const std::string& name)>;
  using Listener = std::function<void(std::string name, Time begin, Time end)>;
  void listen(Begun begun, Listener listener) {
    begun_ = std::move(begun);
    listener_ = std::move(listener);
  }

  void end_step() { ++steps_; }
  // Returns seconds per step since the last call: time_PART_max, also time_PART_min with minmax, time_PART_rank_N with
  // all. Empty at level 0. Every rank calls it. Waits: for all ranks.
  NamedValues take();

 private:
  void settle(int64_t level);
  size_t parts() const;  // number of parts that are measured

  ParallelContext& job_;
  int64_t level_;
  Begun begun_;
  Listener listener_;
  Time action_begin_;
  TimingLogOption option_;
  std::array<double, kStepParts> seconds_ = {};
  int64_t steps_ = 0;
};

}  // namespace concord
