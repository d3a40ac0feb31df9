// A step up to its update: forward, backward, reduction, the gradient norm. It changes nothing but the gradients and
// the generators of the job, so it can be computed again. Threads: the one that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/models/micro_batch.h"
#include "trainer/build.h"

namespace concord {

struct StepAttempt {
  at::Tensor losses;      // this rank's, see logged_losses
  int64_t counted = 0;    // tokens of all ranks that the loss counts; 0: nothing was measured
  double divisor = 1;     // of the gradients: the loss scale, times the counted tokens if the loss is a mean over them
  StepResult measured{};  // |updated| says whether an update can be made
  bool skipped = false;   // somebody has decided that no update is made
};

// Forward and backward of this rank's micro-batches, which are on the host. |hold| as in
// DistributedDataParallel::begin_step.
StepAttempt run_micro_batches(TrainingParts& parts, const std::vector<MicroBatch>& host_batches, bool hold = false);
// The rest. Waits: for the gradient norm of all ranks.
void reduce_grads_and_norm(TrainingParts& parts, const std::vector<MicroBatch>& host_batches, StepAttempt* attempt);
// The same where a norm that is finite, and |loss| if it is given, lead to an update: a device begins it meanwhile (see
// Optimizer::measure_and_launch_update).
void reduce_grads_and_launch_update(TrainingParts& parts, const std::vector<MicroBatch>& host_batches,
                                    const std::optional<at::Tensor>& loss, StepAttempt* attempt);

// What the optimizer is given for the update of |attempt|.
StepSettings step_settings(const TrainingParts& parts, const StepAttempt& attempt);

// Throws Error for a gradient norm that is not finite.
void require_finite_gradient(const StepAttempt& attempt, int64_t number);

}  // namespace concord
