#include "trainer/train_step.h"

#include <fmt/format.h>

#include <optional>

#include "platform/loader/error.h"
#include "platform/loader/host.h"
#include "trainer/health/loss_check.h"
#include "trainer/health/step_validator.h"
#include "trainer/step_attempt.h"

namespace concord {
namespace {

// Sets what |step| says of the update. The schedules of the learning rate and of the loss scale go on.
void update(TrainingParts& parts, const StepAttempt& attempt, size_t microbatches, StepOutput* step) {
  step->updated = attempt.measured.updated && !attempt.skipped;
  step->grad_norm = attempt.measured.grad_norm;
  step->zeros = attempt.measured.zeros;
  if (step->updated) {
    parts.optimizer.update(step_settings(parts, attempt), attempt.measured);
    const double rate = parts.model.args().options.moe.router_bias_update_rate;
    for (const auto& stage : parts.stages) {
      if (rate > 0) stage->update_expert_bias(rate);
    }
  }
  for (const auto& stage : parts.stages) stage->end_fp8_step(step->updated);
  if (parts.scaler && !attempt.skipped) parts.scaler->update(!step->updated);
  if (step->updated) parts.lr.step(parts.lr_increment(static_cast<int64_t>(microbatches)));
}

void warn_of_no_labels(int64_t number, const ParallelContext& job) {
  if (job.rank() != 0) return;
  loader::log(CONCORD_LOG_WARN, "train",
              fmt::format("step {} is skipped: it has no token that counts in the loss, all labels are ignored (-100)",
                          number));
}

// A loss that is not finite makes gradients that are not finite either, and these are found first. Throws where it was
// the loss.
void throw_if_loss_not_finite(const TrainingParts& parts, const ParallelContext& job, int64_t number) {
  try {
    require_finite_losses(parts.stages.back()->token_losses(), number, job);
  } catch (const c10::Error&) {
  }  // the device itself does not work any more; what it said first is the better report
}

// Without a validator, a number that is not finite is found by each rank for itself.
StepAttempt compute(TrainingParts& parts, ParallelContext& job, const std::vector<MicroBatch>& host_batches,
                    int64_t number, OnNotFinite on_not_finite) try {
  StepAttempt attempt = run_micro_batches(parts, host_batches);
  std::optional<LossCheck> loss_check;
  std::optional<at::Tensor> loss;  // that has to be finite
  if (on_not_finite == OnNotFinite::stop) {
    loss_check.emplace(attempt.losses, job);
    loss = attempt.losses.sum().to(job.torch_device());
  }
  reduce_grads_and_launch_update(parts, host_batches, loss, &attempt);
  if (loss_check) {
    loss_check->require_finite(number);
    require_finite_gradient(attempt, number);
  }
  return attempt;
} catch (const Error&) {
  if (on_not_finite == OnNotFinite::stop) throw_if_loss_not_finite(parts, job, number);
  throw;
}

}  // namespace

StepOutput train_step(TrainingParts& parts, ParallelContext& job, const std::vector<MicroBatch>& host_batches,
                      int64_t number, OnNotFinite on_not_finite, StepValidator* validator) {
  StepOutput step;
  step.learning_rate = parts.lr.lr();
  step.decoupled_learning_rate = parts.decoupled_learning_rate();
  step.loss_scale = parts.loss_scale();
  const StepAttempt attempt =
      validator ? validator->compute(host_batches, number) : compute(parts, job, host_batches, number, on_not_finite);
  step.loss = attempt.losses.sum();
  step.counted = attempt.counted;
  if (step.counted > 0) {
    const StepTimers::Span span(parts.timers, StepPart::optimizer);
    update(parts, attempt, host_batches.size(), &step);
  } else {
    warn_of_no_labels(number, job);
  }
  return step;
}

}  // namespace concord
