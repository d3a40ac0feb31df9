#include "trainer/train_step.h"

#include <fmt/format.h>

#include <optional>

#include "core/data_parallel/finalize_grads.h"
#include "platform/loader/error.h"
#include "platform/loader/host.h"
#include "trainer/device_batch.h"
#include "trainer/loss_check.h"

namespace concord {
namespace {

void forward_backward(TrainingParts& parts, const std::vector<MicroBatch>& batches,
                      const std::vector<double>& weights) {
  parts.begin(batches, weights);
  parts.data_parallel.begin_step(static_cast<int64_t>(batches.size()));
  parts.executor.run();
}

// Sets what |step| says of the update. The schedules of the learning rate and of the loss scale go on.
void update(TrainingParts& parts, StepOutput* step) {
  const StepResult result = parts.optimizer.step(
      {.lr = step->learning_rate, .weight_decay = parts.lr.weight_decay(), .loss_scale = step->loss_scale});
  step->updated = result.updated;
  step->grad_norm = result.grad_norm;
  step->zeros = result.zeros;
  if (parts.scaler) parts.scaler->update(!step->updated);
  if (step->updated) parts.lr.step();
}

void warn_of_no_labels(int64_t number, const ParallelContext& job) {
  if (job.rank() != 0) return;
  loader::log(CONCORD_LOG_WARN, "train",
              fmt::format("step {} is skipped: it has no token that counts in the loss, all labels are ignored (-100)",
                          number));
}

void require_finite_gradient(const StepOutput& step, int64_t number) {
  if (step.updated || step.counted == 0) return;
  throw Error(CONCORD_STATUS_INTERNAL,
              fmt::format("the gradient of step {} is not finite (norm {}); try a lower learning_rate or "
                          "max_grad_norm, and use `concord probe` to find the first affected layer",
                          number, step.grad_norm));
}

// A loss that is not finite makes gradients that are not finite either, and these are found first. Throws where it was
// the loss.
void blame_the_loss(const TrainingParts& parts, const ParallelContext& job, int64_t number) {
  try {
    require_finite_losses(parts.stages.back()->token_losses(), number, job);
  } catch (const c10::Error&) {
  }  // the device itself does not work any more; what it said first is the better report
}

}  // namespace

StepOutput train_step(TrainingParts& parts, ParallelContext& job, const std::vector<MicroBatch>& host_batches,
                      int64_t number, OnNotFinite on_not_finite) try {
  StepOutput step;
  step.learning_rate = parts.lr.lr();
  step.loss_scale = parts.loss_scale();
  const std::vector<double> weights = loss_weights(host_batches, parts.loss_rule);
  const std::vector<MicroBatch> batches = to_device(host_batches, job.torch_device());

  forward_backward(parts, batches, weights);
  const at::Tensor losses = logged_losses(*parts.stages.back(), weights, parts.loss_rule);
  step.loss = losses.sum();
  std::optional<LossCheck> loss_check;
  if (on_not_finite == OnNotFinite::stop) loss_check.emplace(losses, job);

  step.counted = finalize_grads(parts.data_parallel, {.tokens = parts.counted_tokens(host_batches)});
  if (step.counted > 0) {
    update(parts, &step);
  } else {
    warn_of_no_labels(number, job);
  }

  if (loss_check) {
    loss_check->require_finite(number);
    require_finite_gradient(step, number);
  }
  return step;
} catch (const Error&) {
  if (on_not_finite == OnNotFinite::stop) blame_the_loss(parts, job, number);
  throw;
}

}  // namespace concord
