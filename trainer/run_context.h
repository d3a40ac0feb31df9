// The state that the training loop shares with its parts (trainer/loop_part.h): progress, requests, callbacks,
// heartbeat. Threads: training thread only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/heartbeat.h"
#include "trainer/build.h"
#include "trainer/callbacks.h"
#include "trainer/metrics/step_clock.h"
#include "trainer/train_step.h"

namespace concord {

class StopRequest;

struct RunContext {
  // |plan|, |job| and |parts| must outlive it.
  RunContext(const TrainingPlan& plan, ParallelContext& job, TrainingParts& parts);

  // Invokes |call| for every callback, in the order in which they were added.
  template <class Call>
  void notify(Call call) {
    for (const auto& callback : callbacks) call(*callback);
  }

  // Fixed for the run.
  const TrainingPlan& plan;
  ParallelContext& job;
  TrainingParts& parts;
  std::vector<std::shared_ptr<TrainerCallback>> callbacks;

  // Progress of the run. |state| is identical on all ranks except for is_world_process_zero.
  TrainerState state;
  StepOutput last_step;
  Heartbeat heartbeat;
  StepClock clock;  // time of this rank's steps, by activity

  // Requests of this rank; those of all ranks once the loop has all-reduced them.
  TrainerControl control;
  std::string exit_reason;            // argument that ends the run, on this rank; empty: none
  const StopRequest* stop = nullptr;  // set from begin() to end()
};

}  // namespace concord
