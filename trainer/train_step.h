// One step of training: load the micro-batches onto the device, run forward and backward, reduce the gradients, update.
//
// It keeps nothing from one step to the next but what is in TrainingParts (weights, optimizer state, schedules) and the
// generators of the job, so the same batches after the same state give the same step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/models/micro_batch.h"
#include "trainer/build.h"

namespace concord {

struct StepOutput {
  at::Tensor loss;       // this rank's part, see logged_losses
  int64_t counted = 0;   // tokens of all ranks that the loss counts
  bool updated = false;  // false: skipped, for an overflow, a verdict of |validator| or because no token is counted
  double grad_norm = 0;
  int64_t zeros = 0;
  double learning_rate = 0;
  double decoupled_learning_rate = 0;  // 0: there is none
  double loss_scale = 1;
};

// What becomes of a loss or gradient that is not finite.
enum class OnNotFinite {
  stop,  // an Error that names the step and, for a loss, the rank and the micro-batch
  skip,  // a step without an update
};

class StepValidator;

// Every rank of the job calls it with its own micro-batches, which are on the host. |number| is the step's, from 1, for
// messages. With |validator| the numbers of all ranks are checked before the update, and computed again where they look
// wrong; null: no step is. Waits: for the gradient norm of all ranks.
StepOutput train_step(TrainingParts& parts, ParallelContext& job, const std::vector<MicroBatch>& host_batches,
                      int64_t number, OnNotFinite on_not_finite, StepValidator* validator = nullptr);

}  // namespace concord
