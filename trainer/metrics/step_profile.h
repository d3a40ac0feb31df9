// Profiles of some steps, one file per rank in the format of Perfetto and chrome://tracing: profile,
// profile_step_start, profile_step_end, profile_ranks. Spans are those of the host: the step, its parts
// (trainer/metrics/step_timers.h), the computations of the pipeline's schedule, the layers, and within these the
// operators of libtorch and Concord, forward and backward. On a device an operator's span is the time that the host
// took to queue it; activities of the device have one row per stream, if the plugin has a table of activities
// (platform/abi/extensions.h). All spans of the host are also ranges of the vendor's profiler, if the plugin has them.
//
// Other steps are not measured. Threads: training thread only; operators of all threads are recorded.
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
  std::optional<concord_profiler_table> profiler = std::nullopt;
};

class StepProfile {
 public:
  // |timers| must outlive the profile. Throws ConfigError for a rank that the job of |world| does not have.
  StepProfile(const TrainingArguments& arguments, int64_t rank, int64_t world, StepTimers& timers,
              DeviceActivities device);
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  // Call before and after each step; |done| steps were done before it. The file is written after the last profiled
  // step.
  void begin_step(int64_t done);
  void end_step(int64_t done);
  // Writes the steps that were recorded so far. Call at the end of the run.
  void finish();

 private:
  class Recording;

  void start_device();
  void stop_device();

  int64_t first_, end_;  // numbers of completed steps
  bool is_asked_ = false;
  std::string file_;
  StepTimers& timers_;
  DeviceActivities device_;
  bool device_records_ = false;
  std::chrono::steady_clock::time_point begin_;
  std::unique_ptr<Recording> recording_;
};

}  // namespace concord
