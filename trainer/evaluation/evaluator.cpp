#include "trainer/evaluation/evaluator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/base/config_error.h"
#include "trainer/data/to_micro_batch.h"
#include "trainer/device_batch.h"
#include "trainer/evaluation/argmax_predictions.h"
#include "trainer/run_context.h"
#include "trainer/stop_agreement.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Returns the means over the tokens of both.
EvalLoopOutput merge_eval_outputs(const EvalLoopOutput& a, const EvalLoopOutput& b) {
  if (a.num_samples == 0) return b;
  const auto of_a = static_cast<double>(a.tokens), of_b = static_cast<double>(b.tokens);
  return {.loss = (a.loss * of_a + b.loss * of_b) / (of_a + of_b),
          .num_samples = a.num_samples + b.num_samples,
          .tokens = a.tokens + b.tokens,
          .accuracy = (a.accuracy * of_a + b.accuracy * of_b) / (of_a + of_b),
          .metrics = {}};
}

// |of_pairs|: the loss is not one of tokens, so there is no perplexity.
NamedValues eval_metrics(const std::string& name, const EvalLoopOutput& output, double seconds, bool of_pairs,
                         const NamedValues& extra) {
  NamedValues metrics{{name + "_loss", output.loss},
                      {name + "_runtime", seconds},
                      {name + "_samples_per_second", static_cast<double>(output.num_samples) / seconds}};
  if (!of_pairs) metrics.insert(metrics.begin() + 1, {name + "_perplexity", std::exp(output.loss)});
  metrics.insert(metrics.end(), extra.begin(), extra.end());
  return metrics;
}

StepInterval eval_interval(const TrainingPlan& plan) {
  const TrainingArguments& a = plan.arguments;
  return {a.evaluation.strategy, eval_steps(a), plan.max_steps};
}

}  // namespace

struct Evaluator::Totals {
  LossTotals losses, right;
  ObjectiveLog* objective;
  std::optional<Predictions> predictions;  // none: not needed
};

Evaluator::Evaluator(RunContext& run, const Providers& providers, StepLog& log)
    : LoopPart(run),
      log_(log),
      interval_(eval_interval(run.plan)),
      compute_metrics_(providers.compute_metrics),
      process_non_loss_data_(providers.process_non_loss_data),
      non_loss_data_(providers.non_loss_data),
      samples_(run.plan, run.job),
      best_(run.plan, run.job) {}

void Evaluator::request(bool ends_epoch) {
  const EvaluationArguments& given = run_.plan.arguments.evaluation;
  const bool counts_epochs = given.strategy == IntervalStrategy::epoch;
  const double done = counts_epochs ? run_.state.epoch : static_cast<double>(run_.state.global_step);
  run_.control.should_evaluate = done >= given.delay && interval_.is_due(run_.state.global_step, ends_epoch);
}

// The last step is always evaluated: the last epoch ends with the run, as in HF, whatever eval_steps is, as in
// Megatron.
bool Evaluator::act() {
  const bool is_finished = run_.state.global_step == run_.plan.max_steps;
  run_.control.should_evaluate |= is_finished && run_.plan.arguments.evaluation.strategy != IntervalStrategy::no;
  if (!std::exchange(run_.control.should_evaluate, false)) return false;
  best_.evaluated(run_.state.global_step, evaluate().metrics);
  run_.state.best = best_.result();
  if (best_.should_stop()) {
    run_.control.should_training_stop = true;
    run_.exit_reason = "early_stopping_patience";
  }
  return true;
}

void Evaluator::restore(const TrainingState& state) {
  best_.restore(state, run_.plan.resume_from);
  run_.state.best = best_.result();
}

EvalLoopOutput Evaluator::evaluate() {
  return with_eval_weights([this] { return evaluate_all_sets(); });
}

// Swaps the weights with their EMA during |evaluate|, if the EMA is to be evaluated. An exception ends the run, so the
// swap is not undone then.
EvalLoopOutput Evaluator::with_eval_weights(const std::function<EvalLoopOutput()>& evaluate) {
  const bool uses_ema = run_.plan.arguments.evaluation.uses_ema;
  if (uses_ema) run_.parts.optimizer.swap_ema_weights();
  EvalLoopOutput output = evaluate();
  if (uses_ema) run_.parts.optimizer.swap_ema_weights();
  return output;
}

EvalLoopOutput Evaluator::evaluate_all_sets() {
  const TrainingPlan& plan = run_.plan;
  if (plan.eval_sets.empty()) throw ConfigError("no evaluation data; give --eval_data");
  const StepClock::Span span(run_.clock, StepClock::Activity::other);
  const PhaseScope phase(&run_.heartbeat, RankPhase::evaluating);
  const Clock::time_point begin = Clock::now();
  EvalLoopOutput output;
  NamedValues extra;
  ObjectiveLog objective(run_.job, measures_tokens(plan.arguments));
  for (const EvaluationSet& set : plan.eval_sets) {
    const std::string name = set.name.empty() ? "eval" : "eval_" + set.name;
    const EvalLoopOutput one = evaluate_set(*set.data, name, &objective, &extra);
    if (one.num_samples == 0) return {};
    if (!set.name.empty()) add_set_metrics(name, one, &extra);
    output = merge_eval_outputs(output, one);
  }
  if (plan.arguments.evaluation.accuracy) extra.emplace_back("eval_accuracy", output.accuracy);
  for (auto& metric : objective.take("eval_")) extra.push_back(std::move(metric));
  for (auto& metric : non_loss_metrics()) extra.push_back(std::move(metric));
  const Clock::duration time = Clock::now() - begin;
  output.metrics = eval_metrics("eval", output, Seconds(time).count(), run_.parts.pairs != nullptr, extra);
  report(output, std::move(extra), Seconds(time).count());
  log_.exclude(time);
  return output;
}

void Evaluator::add_set_metrics(const std::string& name, const EvalLoopOutput& output, NamedValues* extra) const {
  extra->emplace_back(name + "_loss", output.loss);
  if (!run_.parts.pairs) extra->emplace_back(name + "_perplexity", std::exp(output.loss));
  if (run_.plan.arguments.evaluation.accuracy) extra->emplace_back(name + "_accuracy", output.accuracy);
}

void Evaluator::report(const EvalLoopOutput& output, NamedValues extra, double seconds) {
  const EvalReport report{.step = run_.state.global_step,
                          .epoch = run_.state.epoch,
                          .loss = output.loss,
                          .tokens = output.tokens,
                          .seconds = seconds,
                          .extra = std::move(extra),
                          .samples = samples_.generate(run_.parts.model)};
  run_.notify([&](TrainerCallback& c) { c.on_evaluate(run_.state, report, run_.control); });
}

// Waits: for the ranks of the pipeline.
NamedValues Evaluator::non_loss_metrics() {
  if (!process_non_loss_data_) return {};
  const at::NoGradGuard no_grad;
  const ModelStage& last = *run_.parts.stages.back();
  const std::vector<at::Tensor> data = non_loss_data_ ? non_loss_data_(run_.parts.model) : last.token_losses();
  NamedValues metrics =
      of_last_stage(run_.job, last.is_last() ? process_non_loss_data_(data, run_.state.global_step) : NamedValues());
  for (auto& [name, value] : metrics) name = "eval_" + name;
  return metrics;
}

EvalLoopOutput Evaluator::test() {
  const TrainingPlan& plan = run_.plan;
  if (!plan.test_data) throw ConfigError("no test data; give --test_data");
  const PhaseScope phase(&run_.heartbeat, RankPhase::evaluating);
  const Clock::time_point begin = Clock::now();
  ObjectiveLog objective(run_.job, measures_tokens(plan.arguments));
  NamedValues extra;
  EvalLoopOutput output = with_eval_weights([&] { return evaluate_set(*plan.test_data, "test", &objective, &extra); });
  if (output.num_samples == 0) return output;
  for (auto& metric : objective.take("test_")) extra.push_back(std::move(metric));
  if (plan.arguments.evaluation.accuracy) extra.emplace_back("test_accuracy", output.accuracy);
  output.metrics =
      eval_metrics("test", output, Seconds(Clock::now() - begin).count(), run_.parts.pairs != nullptr, extra);
  return output;
}

bool Evaluator::computes_metrics() const { return compute_metrics_ && !run_.plan.arguments.evaluation.loss_only; }

bool Evaluator::writes_predictions(const std::string& name) const {
  return run_.plan.arguments.evaluation.predict && name == "test";
}

int64_t Evaluator::batches_of(const DataLoader& data) const {
  const int64_t all = data.batches(0), limit = run_.plan.arguments.evaluation.iters;
  return limit > 0 ? std::min(limit, all) : all;
}

// Returns no samples if a stop signal ended the evaluation. Adds the results of compute_metrics to |extra|.
EvalLoopOutput Evaluator::evaluate_set(DataLoader& data, const std::string& name, ObjectiveLog* objective,
                                       NamedValues* extra) {
  const DataPosition start = data.position();
  Totals totals{LossTotals(run_.job), LossTotals(run_.job), objective, {}};
  if (computes_metrics() || writes_predictions(name)) totals.predictions.emplace(run_.job);
  const bool is_complete = evaluate_batches(data, &totals);
  data.restore(start);
  if (!is_complete) return {};
  const auto [loss, tokens] = totals.losses.mean_and_count();
  const int64_t samples = std::min(data.samples(), batches_of(data) * data.global_batch_size());
  if (totals.predictions) report_predictions(name, totals.predictions->take(samples), extra);
  return {.loss = loss,
          .num_samples = samples,
          .tokens = tokens,
          .accuracy = run_.plan.arguments.evaluation.accuracy ? totals.right.mean_and_count().first : 0,
          .metrics = {}};
}

// Writes |predicted| to predictions.jsonl and adds the results of compute_metrics to |extra|, whichever is asked for.
void Evaluator::report_predictions(const std::string& name, const std::vector<PredictedSample>& predicted,
                                   NamedValues* extra) {
  const bool is_last_stage = run_.parts.stages.back()->is_last();
  const int64_t writer = first_of_stage(run_.job.layout(), run_.job.rank(), run_.plan.writers);
  if (writes_predictions(name) && is_last_stage && run_.job.rank() == writer) {
    write_predictions(std::filesystem::path(run_.plan.arguments.output.dir) / "predictions.jsonl", predicted);
  }
  if (!computes_metrics()) return;
  const NamedValues own = is_last_stage ? compute_metrics_(predicted) : NamedValues();
  for (const auto& [metric, value] : of_last_stage(run_.job, own)) extra->emplace_back(name + "_" + metric, value);
}

// Returns false after a stop signal: all ranks leave after the same batch.
bool Evaluator::evaluate_batches(DataLoader& data, Totals* totals) {
  TrainingParts& parts = run_.parts;
  const LossRule rule{.per_token = true, .pairs = parts.loss_rule.pairs};
  StopAgreement agreement(run_.job, run_.stop);
  ModelChunk& chunk = parts.model[parts.model.size() - 1];
  std::optional<ArgmaxPredictions> ranked;
  if (run_.plan.arguments.evaluation.accuracy || totals->predictions) {
    ranked.emplace(run_.plan.config.vocab_size, run_.job.group(GroupKind::tp));
  }
  const int64_t batches = batches_of(data);
  for (int64_t i = 0; i < batches; ++i) {
    if (agreement.is_reached()) return false;
    const std::vector<MicroBatch> host_batches = *next_micro_batches(data);
    const std::vector<MicroBatch> device_batches = to_device(host_batches, run_.job.torch_device());
    parts.prepare_pairs(host_batches, device_batches, TrainingParts::Data::eval);
    parts.begin_evaluation(device_batches, ranked ? ranked->observer() : Observer());
    parts.forward_executor.run();
    const ModelStage& last = *parts.stages.back();
    totals->objective->add(last, parts.pairs.get());
    const int64_t counted = last.is_last() ? parts.counted(host_batches) : 0;
    totals->losses.add(logged_losses(last, loss_weights(host_batches, rule), rule).sum(), counted);
    if (ranked) {
      std::vector<at::Tensor> predicted;
      if (last.is_last()) predicted = ranked->take(device_batches.size());
      totals->right.add(last.is_last() ? count_right(chunk, device_batches, predicted) : at::zeros({}, at::kFloat),
                        counted);
      if (totals->predictions && last.is_last()) {
        totals->predictions->add(chunk, device_batches, last.token_losses(), predicted, i * data.global_batch_size(),
                                 data.samples());
      }
    }
    run_.heartbeat.beat();
  }
  return true;
}

}  // namespace concord
