#include "trainer/metrics/step_log.h"

#include <utility>

#include "trainer/arguments/arguments.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/device_batch.h"
#include "trainer/health/health.h"
#include "trainer/parameter_groups.h"
#include "trainer/run_context.h"

namespace concord {
namespace {

using Seconds = std::chrono::duration<double>;

void append(NamedValues metrics, NamedValues* all) {
  for (auto& metric : metrics) all->push_back(std::move(metric));
}

}  // namespace

StepLog::StepLog(RunContext& run, Health& health)
    : LoopPart(run),
      health_(health),
      interval_(run.plan.arguments.logging.strategy,
                static_cast<double>(logging_steps(run.plan.arguments.logging, run.plan.max_steps)), run.plan.max_steps),
      losses_(run.job, run.plan.arguments.logging.nan_inf_filter),
      routers_(run.job, run.plan.config.experts, run.plan.arguments.model_options),
      objective_(run.job, measures_tokens(run.plan.arguments)),
      mtp_losses_(run.job, run.plan.arguments.model_options.mtp.num_layers) {}

// The steps of |window_| that an earlier run did took |window_.seconds|.
void StepLog::start() {
  window_start_ = std::chrono::steady_clock::now() - std::chrono::duration_cast<Duration>(Seconds(window_.seconds));
}

void StepLog::add(const StepOutput& step) {
  const TrainingParts& parts = run_.parts;
  routers_.add(parts.stages);
  if (step.counted > 0) {
    objective_.add(*parts.stages.back(), parts.pairs.get());
    mtp_losses_.add(*parts.stages.back());
    losses_.add(step.loss, parts.loss_rule.per_token ? step.counted : 0);
  }
  window_.add_step(step.counted > 0, step.updated, step.grad_norm);
  window_.add_batch(run_.plan.train_data->contents());
}

void StepLog::exclude_save(Duration time) {
  exclude(time);
  window_.save_seconds += Seconds(time).count();
}

double StepLog::mean_loss() {
  losses_.take_mean();
  return losses_.mean_so_far();
}

void StepLog::request(bool ends_epoch) {
  const int64_t step = run_.state.global_step;
  run_.control.should_log = interval_.is_due(step, ends_epoch) || (step == 1 && run_.plan.arguments.logging.first_step);
}

// A run that can be resumed logs the steps since the last line after it is resumed, as if it had not been stopped.
bool StepLog::is_last_line() const {
  const SavingArguments& saving = run_.plan.arguments.saving;
  const bool can_resume = saving.strategy != IntervalStrategy::no && !saving.only_model;
  return run_.state.global_step == run_.plan.max_steps || (run_.control.should_training_stop && !can_resume);
}

bool StepLog::act() {
  run_.control.should_log |= is_last_line() && run_.plan.arguments.logging.strategy != IntervalStrategy::no;
  const bool shows_progress = std::exchange(run_.control.should_show_progress, false);
  if (!run_.control.should_log && !shows_progress) return false;
  const StepClock::Span span(run_.clock, StepClock::Activity::other);
  if (!std::exchange(run_.control.should_log, false)) {
    const RecentSteps recent = recent_steps();
    run_.notify([&](TrainerCallback& c) { c.on_progress(run_.state, recent); });
    return false;
  }
  StepReport report = make_report();
  health_.detect_stragglers(&report);
  window_ = {};
  window_start_ = std::chrono::steady_clock::now();
  run_.notify([&](TrainerCallback& c) { c.on_log(run_.state, report, run_.control); });
  return true;
}

double StepLog::window_seconds() const { return Seconds(std::chrono::steady_clock::now() - window_start_).count(); }

RecentSteps StepLog::recent_steps() const {
  return {.steps = window_.steps, .loss = losses_.last(), .tokens = window_.tokens, .seconds = window_seconds()};
}

StepReport StepLog::make_report() {
  StepReport report;
  report.loss = losses_.take_mean();
  report.step = run_.state.global_step;
  report.epoch = run_.state.epoch;
  report.learning_rate = run_.last_step.learning_rate;
  report.grad_norm = window_.last_grad_norm;
  report.skipped = window_.skipped;
  report.next_loss_scale = run_.parts.scaler ? run_.parts.loss_scale() : 0;
  report.tokens = window_.tokens;
  report.samples = window_.samples;
  report.squared_lengths = window_.squared_lengths;
  report.patches = window_.patches;
  report.squared_patches = window_.squared_patches;
  report.seconds = window_seconds();
  report.memory_bytes = memory_in_use(run_.job);
  add_metrics(&report.extra);
  return report;
}

void StepLog::add_metrics(NamedValues* extra) {
  const TrainingArguments& a = run_.plan.arguments;
  const StepOutput& last = run_.last_step;
  const bool has_scaler = run_.parts.scaler.has_value();
  *extra = group_learning_rates(a.groups, last.learning_rate, last.decoupled_learning_rate);
  if (window_.steps > 1) extra->emplace_back("grad_norm_max", window_.largest_grad_norm);
  if (has_scaler) extra->emplace_back("loss_scale", last.loss_scale);
  if (has_scaler || window_.skipped > 0) extra->emplace_back("skipped_iter", static_cast<double>(window_.skipped));
  if (window_.untrained > 0) extra->emplace_back("untrained_iter", static_cast<double>(window_.untrained));
  if (a.optimizer.log_num_zeros_in_grad) extra->emplace_back("num_zeros_in_grad", static_cast<double>(last.zeros));
  if (a.logging.params_norm) extra->emplace_back("params_norm", run_.parts.optimizer.params_norm());
  if (!a.steps.rampup_batch_size.empty()) {
    extra->emplace_back("global_batch_size", static_cast<double>(run_.plan.train_data->batch_rows()));
  }
  append(routers_.take(), extra);
  append(objective_.take(), extra);
  append(mtp_losses_.take(), extra);
  if (window_.save_seconds > 0) extra->emplace_back("save_seconds", window_.save_seconds);
  append(run_.parts.timers.take(), extra);
}

void StepLog::save(TrainingState* state) {
  losses_.save(state);
  state->window = window_;
  state->window.seconds = window_seconds();
}

void StepLog::restore(const TrainingState& state) {
  losses_.restore(state);
  window_ = state.window;
}

}  // namespace concord
