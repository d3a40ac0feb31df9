// Where some steps spend their time, as a file per rank that Perfetto and chrome://tracing show: profile,
// profile_step_start, profile_step_end, profile_ranks. Spans are those of the host: the step, its parts
// (trainer/step_timers.h), the computations of the pipeline's schedule, and within these the operators of libtorch and
// Concord, forward and backward. On a device an operator's span is how long the host took to queue it.
//
// Nothing is measured before and after these steps. Threads: the one that trains; operators of any thread are recorded.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "trainer/arguments/training_arguments.h"
#include "trainer/step_timers.h"

namespace concord {

class StepProfile {
 public:
  // |timers| outlive it. Throws ConfigError for a rank that the job of |world| does not have.
  StepProfile(const TrainingArguments& arguments, int64_t rank, int64_t world, StepTimers& timers);
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  // Around a step; |done| steps were done before it. The file is written after the last one.
  void begin_step(int64_t done);
  void end_step(int64_t done);
  // The run ends: what there is of the steps is written.
  void finish();

 private:
  class Recording;

  int64_t first_, end_;  // steps that were done before
  bool is_asked_ = false;
  std::string file_;
  StepTimers& timers_;
  std::chrono::steady_clock::time_point begin_;
  std::unique_ptr<Recording> recording_;
};

}  // namespace concord
