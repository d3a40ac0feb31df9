// Where some steps spend their time, as a file per rank that Perfetto and chrome://tracing show: profile,
// profile_step_start, profile_step_end, profile_ranks. Spans are those of the host: the step, its parts
// (trainer/metrics/step_timers.h), the computations of the pipeline's schedule, and within these the operators of
// libtorch and Concord, forward and backward. On a device an operator's span is how long the host took to queue it;
// what the device did then has a row for each of its streams, where the plugin has a table of activities
// (platform/abi/extensions.h).
//
// Nothing is measured before and after these steps. Threads: the one that trains; operators of any thread are recorded.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "platform/abi/concord.h"
#include "trainer/arguments/training_arguments.h"
#include "trainer/metrics/step_timers.h"

namespace concord {

// The device's part of a profile: the plugin's table, if it has one, and how to wait until all that was queued is done.
struct DeviceActivities {
  std::optional<concord_activity_table> table;
  std::function<void()> synchronize;
};

class StepProfile {
 public:
  // |timers| outlive it. Throws ConfigError for a rank that the job of |world| does not have.
  StepProfile(const TrainingArguments& arguments, int64_t rank, int64_t world, StepTimers& timers,
              DeviceActivities device);
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

  void start_device();
  void stop_device();

  int64_t first_, end_;  // steps that were done before
  bool is_asked_ = false;
  std::string file_;
  StepTimers& timers_;
  DeviceActivities device_;
  bool device_records_ = false;
  std::chrono::steady_clock::time_point begin_;
  std::unique_ptr<Recording> recording_;
};

}  // namespace concord
