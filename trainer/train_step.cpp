#include "trainer/train_step.h"

#include <fmt/format.h>

#include "core/data_parallel/finalize_grads.h"
#include "platform/loader/error.h"
#include "platform/loader/host.h"
#include "trainer/health/step_check.h"

namespace concord {
namespace {

StepSettings step_settings(const TrainingParts& parts, const StepAttempt& attempt) {
  return {.lr = parts.lr.lr(),
          .weight_decay = parts.lr.weight_decay(),
          .grad_divisor = attempt.divisor,
          .decoupled_lr = parts.decoupled_learning_rate()};
}

void warn_of_no_labels(int64_t number, const ParallelContext& job) {
  if (job.rank() != 0) return;
  loader::log(CONCORD_LOG_WARN, "train",
              fmt::format("step {} is skipped: it has no token that counts in the loss, all labels are ignored (-100)",
                          number));
}

// Updates the weights, if |attempt| allows it, and advances the schedules of the learning rate and the loss scale.
void update(TrainingParts& parts, const StepAttempt& attempt, int64_t rows, StepOutput* step) {
  const StepTimers::Span span(parts.timers, StepPart::optimizer);
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
  if (step->updated) parts.lr.step(parts.lr_increment(rows));
}

PassInputs prepare_inputs(TrainingParts& parts, const std::vector<MicroBatch>& host_batches, bool defer_reduction) {
  PassInputs inputs{.batches = parts.copies.to_device(host_batches),
                    .weights = loss_weights(host_batches, parts.loss_rule),
                    .router_weights = router_loss_weights(host_batches, parts.loss_rule),
                    .loss_scale = parts.loss_scale(),
                    .has_fp8_history = parts.stages.front()->has_fp8_history(),
                    .defer_reduction = defer_reduction};
  parts.prepare_pairs(host_batches, inputs.batches, TrainingParts::Data::train);
  return inputs;
}

// Sets what a replay, which runs on the device only, leaves unchanged on the host.
void set_replayed(TrainingParts& parts, const PassInputs& inputs, const StepPasses& passes) {
  parts.data_parallel.set_step_replayed(static_cast<int64_t>(inputs.batches.size()));
  for (size_t i = 0; i < parts.stages.size(); ++i) parts.stages[i]->set_results(passes.results[i]);
}

}  // namespace

StepPasses forward_backward(TrainingParts& parts, const PassInputs& inputs) {
  const auto count = static_cast<int64_t>(inputs.batches.size());
  std::vector<double> weights = inputs.weights, router_weights = inputs.router_weights;
  for (double& weight : weights) weight *= inputs.loss_scale;
  for (double& weight : router_weights) weight *= inputs.loss_scale;
  for (const auto& stage : parts.stages) {
    stage->begin(inputs.batches, weights, router_weights, {.measure_tokens = parts.log_token_metrics});
  }
  parts.data_parallel.begin_step(count, inputs.defer_reduction);
  parts.executor(count).run();
  parts.data_parallel.flush_grads();
  // A vision tower gets no gradient on a rank without images. Its reduction must still precede other collectives there.
  const bool reduces_meanwhile = parts.data_parallel.options().overlap_grad_reduce && !inputs.defer_reduction;
  if (reduces_meanwhile) parts.data_parallel.start_grad_sync();
  StepPasses passes{.losses = logged_losses(*parts.stages.back(), inputs.weights, parts.loss_rule), .results = {}};
  for (const auto& stage : parts.stages) passes.results.push_back(stage->results());
  return passes;
}

StepAttempt run_or_replay(TrainingParts& parts, const std::vector<MicroBatch>& host_batches, bool defer_reduction) {
  const StepTimers::Span span(parts.timers, StepPart::forward_backward);
  const auto run = [&parts](const PassInputs& inputs) { return forward_backward(parts, inputs); };
  const auto replayed = [&parts](const PassInputs& inputs, const StepPasses& passes) {
    set_replayed(parts, inputs, passes);
  };
  return {.losses = parts.graph.run_or_replay(prepare_inputs(parts, host_batches, defer_reduction), run, replayed)};
}

void reduce_grads(TrainingParts& parts, const std::vector<MicroBatch>& host_batches, StepAttempt* attempt) {
  const StepTimers::Span span(parts.timers, StepPart::reduce);
  attempt->counted = finalize_grads(parts.data_parallel, {.tokens = parts.counted(host_batches), .divide = false});
  attempt->divisor = parts.loss_scale() * (parts.loss_rule.per_token ? static_cast<double>(attempt->counted) : 1);
}

void measure(TrainingParts& parts, StepAttempt* attempt) {
  if (attempt->counted == 0) return;
  const StepTimers::Span span(parts.timers, StepPart::optimizer);
  attempt->measured = attempt->launches_update ? parts.optimizer.measure_and_launch_update(
                                                     step_settings(parts, *attempt), attempt->finite_loss)
                                               : parts.optimizer.measure(attempt->divisor);
}

void require_finite_gradient(const StepAttempt& attempt, int64_t number) {
  if (attempt.measured.updated || attempt.counted == 0) return;
  throw Error(CONCORD_STATUS_INTERNAL,
              fmt::format("the gradient of step {} is not finite (norm {}); try a lower learning_rate or "
                          "max_grad_norm, and use `concord probe` to find the first affected layer",
                          number, attempt.measured.grad_norm));
}

StepOutput skipped_step(const TrainingParts& parts) {
  StepOutput step;
  step.learning_rate = parts.lr.lr();
  step.decoupled_learning_rate = parts.decoupled_learning_rate();
  step.loss_scale = parts.loss_scale();
  return step;
}

StepOutput train_step(TrainingParts& parts, ParallelContext& job, const StepData& data, int64_t number,
                      StepCheck& check) try {
  const std::vector<MicroBatch>& host_batches = data.micro_batches;
  StepOutput step = skipped_step(parts);
  check.begin(host_batches, number);
  StepAttempt attempt = run_or_replay(parts, host_batches);
  check.watch_losses(&attempt);
  reduce_grads(parts, host_batches, &attempt);
  measure(parts, &attempt);
  check.finish(&attempt);
  step.loss = attempt.losses.sum();
  step.counted = attempt.counted;
  if (step.counted > 0) {
    update(parts, attempt, data.rows, &step);
  } else {
    warn_of_no_labels(number, job);
  }
  return step;
} catch (const Error&) {
  check.explain_error();
  throw;
}

}  // namespace concord
