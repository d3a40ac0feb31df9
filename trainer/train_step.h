// One step of training: forward and backward of all micro-batches, reduction of the gradients, their norm, the update.
//
// A step depends only on its micro-batches, on TrainingParts (weights, optimizer state, schedules) and on the random
// generators of the job. Up to the update it changes gradients and generators only, so it can be computed again.
// Threads: training thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/models/micro_batch.h"
#include "trainer/build.h"

namespace concord {

class StepCheck;

// A step up to its update.
struct StepAttempt {
  at::Tensor losses;                        // losses of this rank's micro-batches, see logged_losses
  std::optional<at::Tensor> finite_loss{};  // loss on the device that must be finite for an update; none: not checked
  bool launches_update = false;             // measure() launches the update before the host knows the norm
  int64_t counted = 0;                      // tokens that the loss covers, over all ranks; 0: nothing is measured
  double divisor = 1;                       // loss scale, times |counted| if the loss is a mean over tokens
  StepResult measured{};                    // |updated|: the norm allows an update
  bool skipped = false;                     // a StepCheck decided against the update
};

// Runs the pipeline schedule over the micro-batches. Afterwards all gradients are in their buffers, unless they are
// being reduced.
StepPasses forward_backward(TrainingParts& parts, const PassInputs& inputs);

// Copies the micro-batches to the device and calls forward_backward, or replays the CUDA graph of an identical step
// (StepGraph). With |defer_reduction| the gradients stay on this rank until reduce_grads, which allows to examine them.
StepAttempt run_or_replay(TrainingParts& parts, const std::vector<MicroBatch>& host_batches,
                          bool defer_reduction = false);

// Finishes the reduction of the gradients over all replicas and counts the tokens that the loss covers. Waits: for all
// ranks.
void reduce_grads(TrainingParts& parts, const std::vector<MicroBatch>& host_batches, StepAttempt* attempt);

// Computes the gradient norm. Waits: for all ranks.
void measure(TrainingParts& parts, StepAttempt* attempt);

// Throws Error unless the gradient norm of |attempt|, which is step |number|, is finite.
void require_finite_gradient(const StepAttempt& attempt, int64_t number);

struct StepOutput {
  at::Tensor loss;       // this rank's part of the loss, see logged_losses
  int64_t counted = 0;   // tokens that the loss covers, over all ranks
  bool updated = false;  // false: skipped, because of an overflow, a StepCheck, or because the loss covers no token
  double grad_norm = 0;
  int64_t zeros = 0;
  double learning_rate = 0;
  double decoupled_learning_rate = 0;  // 0: unused
  double loss_scale = 1;
};

// Returns the output of a step that is not computed (iterations_to_skip).
StepOutput skipped_step(const TrainingParts& parts);

// The data of a step.
struct StepData {
  const std::vector<MicroBatch>& micro_batches;  // micro-batches of this rank, on the host
  int64_t rows;                                  // rows of the global batch: DataLoader::batch_rows
};

// Computes step |number|, counted from 1, of this rank's micro-batches. |check| decides whether
// the numbers are good enough for the update. Every rank of the job calls it. Throws as |check| does. Waits: for the
// gradient norm of all ranks.
StepOutput train_step(TrainingParts& parts, ParallelContext& job, const StepData& data, int64_t number,
                      StepCheck& check);

}  // namespace concord
