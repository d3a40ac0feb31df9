#include "trainer/step_attempt.h"

#include <fmt/format.h>

#include "core/data_parallel/finalize_grads.h"
#include "platform/loader/error.h"

namespace concord {

StepAttempt run_micro_batches(TrainingParts& parts, const std::vector<MicroBatch>& host_batches, bool hold) {
  const StepTimers::Span span(parts.timers, StepPart::forward_backward);
  PassInputs inputs{.batches = parts.copies.to_device(host_batches),
                    .weights = loss_weights(host_batches, parts.loss_rule),
                    .router_weights = router_loss_weights(host_batches, parts.loss_rule),
                    .loss_scale = parts.loss_scale(),
                    .has_fp8_history = parts.stages.front()->has_fp8_history(),
                    .hold = hold};
  parts.prepare_pairs(host_batches, inputs.batches, TrainingParts::Data::train);
  return {.losses = parts.replay.run(std::move(inputs))};
}

namespace {

// False where there is nothing to measure.
bool reduce(TrainingParts& parts, const std::vector<MicroBatch>& host_batches, StepAttempt* attempt) {
  const StepTimers::Span span(parts.timers, StepPart::reduce);
  attempt->counted = finalize_grads(parts.data_parallel, {.tokens = parts.counted(host_batches), .divide = false});
  attempt->divisor = parts.loss_scale() * (parts.loss_rule.per_token ? static_cast<double>(attempt->counted) : 1);
  return attempt->counted > 0;
}

}  // namespace

StepSettings step_settings(const TrainingParts& parts, const StepAttempt& attempt) {
  return {.lr = parts.lr.lr(),
          .weight_decay = parts.lr.weight_decay(),
          .grad_divisor = attempt.divisor,
          .decoupled_lr = parts.decoupled_learning_rate()};
}

void reduce_grads_and_norm(TrainingParts& parts, const std::vector<MicroBatch>& host_batches, StepAttempt* attempt) {
  if (!reduce(parts, host_batches, attempt)) return;
  const StepTimers::Span span(parts.timers, StepPart::optimizer);
  attempt->measured = parts.optimizer.measure(attempt->divisor);
}

void reduce_grads_and_launch_update(TrainingParts& parts, const std::vector<MicroBatch>& host_batches,
                                    const std::optional<at::Tensor>& loss, StepAttempt* attempt) {
  if (!reduce(parts, host_batches, attempt)) return;
  const StepTimers::Span span(parts.timers, StepPart::optimizer);
  attempt->measured = parts.optimizer.measure_and_launch_update(step_settings(parts, *attempt), loss);
}

void require_finite_gradient(const StepAttempt& attempt, int64_t number) {
  if (attempt.measured.updated || attempt.counted == 0) return;
  throw Error(CONCORD_STATUS_INTERNAL,
              fmt::format("the gradient of step {} is not finite (norm {}); try a lower learning_rate or "
                          "max_grad_norm, and use `concord probe` to find the first affected layer",
                          number, attempt.measured.grad_norm));
}

}  // namespace concord
