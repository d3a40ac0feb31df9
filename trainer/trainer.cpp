#include "trainer/trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/recovery_log.h"
#include "core/mesh/agreement.h"
#include "core/mesh/job_environment.h"
#include "core/optim/optimizer_files.h"
#include "platform/loader/host.h"
#include "trainer/checkpoint/output_folder.h"
#include "trainer/checkpoint/resume.h"
#include "trainer/checkpoint/resume_check.h"
#include "trainer/checkpoint/save_wait.h"
#include "trainer/data/to_micro_batch.h"
#include "trainer/device_batch.h"
#include "trainer/evaluation/argmax_predictions.h"
#include "trainer/parameter_groups.h"
#include "trainer/stop_agreement.h"
#include "trainer/stop_request.h"

namespace concord {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Interval in steps, or 0 (never) if the strategy is not "steps".
int64_t interval(const std::string& strategy, double steps, int64_t max_steps) {
  return strategy == "steps" ? steps_of(steps, max_steps) : 0;
}

constexpr double kGiB = 1 << 30;

bool is_due(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

// Of an evaluation of |data|.
int64_t batches_of(const DataLoader& data, const TrainingArguments& a) {
  const int64_t all = data.batches(0);
  return a.evaluation.iters > 0 ? std::min(a.evaluation.iters, all) : all;
}

// The mean over the tokens of both.
EvalLoopOutput together(const EvalLoopOutput& a, const EvalLoopOutput& b) {
  if (a.num_samples == 0) return b;
  const auto of_a = static_cast<double>(a.tokens), of_b = static_cast<double>(b.tokens);
  return {.loss = (a.loss * of_a + b.loss * of_b) / (of_a + of_b),
          .num_samples = a.num_samples + b.num_samples,
          .tokens = a.tokens + b.tokens,
          .accuracy = (a.accuracy * of_a + b.accuracy * of_b) / (of_a + of_b),
          .metrics = {}};
}

// function(), for which the model's weights are the average of them where that is asked for. What it throws ends the
// run, so nothing is undone then.
template <class Function>
auto with_average(Optimizer& optimizer, bool is_asked, Function function) {
  if (is_asked) optimizer.swap_ema_weights();
  auto result = function();
  if (is_asked) optimizer.swap_ema_weights();
  return result;
}

// The loss of pairs is not one of tokens, so there is no perplexity.
NamedValues eval_metrics(const std::string& name, const EvalLoopOutput& output, double seconds, bool of_pairs,
                         const NamedValues& extra) {
  NamedValues metrics{{name + "_loss", output.loss},
                      {name + "_runtime", seconds},
                      {name + "_samples_per_second", static_cast<double>(output.num_samples) / seconds}};
  if (!of_pairs) metrics.insert(metrics.begin() + 1, {name + "_perplexity", std::exp(output.loss)});
  metrics.insert(metrics.end(), extra.begin(), extra.end());
  return metrics;
}

std::string replica_mismatch_message(const ReplicaDifference& difference, int64_t step) {
  const std::string suspect =
      difference.culprit
          ? fmt::format("the device or the memory of rank {} is suspect: run without it", *difference.culprit)
          : std::string(
                "without a majority it cannot be told which of them is wrong: test the devices and the memory "
                "of these ranks");
  return fmt::format(
      "after step {} the replicas are not equal: {}; {}, and resume from the newest checkpoint, before which they were "
      "equal",
      step, difference.text, suspect);
}

}  // namespace

Trainer::Trainer(TrainingPlan plan, ParallelContext& job, const Providers& providers)
    : plan_(std::move(plan)),
      job_(job),
      parts_(plan_, job, providers),
      replicas_(parts_.data_parallel),
      compute_metrics_(providers.compute_metrics),
      process_non_loss_data_(providers.process_non_loss_data),
      non_loss_data_(providers.non_loss_data),
      losses_(job, plan_.arguments.logging.nan_inf_filter),
      routers_(job, plan_.config.experts, plan_.arguments.model_options),
      objective_(job, measures_tokens(plan_.arguments)),
      further_(job, plan_.arguments.model_options.mtp.num_layers),
      samples_(plan_, job),
      best_(plan_, job),
      memory_(plan_, job),
      pulse_(read_job_environment().local_rank),
      profile_(plan_.arguments, job.rank(), job.world(), parts_.timers,
               {job.platform().extension<concord_activity_table>(), [&job] { job.device().synchronize(); }}),
      clock_(job),
      straggler_action_(straggler_action(plan_.arguments.report.straggler_action)) {
  const TrainingArguments& a = plan_.arguments;
  const bool stops = a.precision.stops_on_not_finite();
  if (a.faults.rerun_mode == "validate") {
    step_check_ = std::make_unique<StepValidator>(parts_, job, replicas_,
                                                  StepValidatorOptions{.stops_on_not_finite = stops,
                                                                       .spike_factor = a.faults.spike_factor,
                                                                       .action = rerun_action(a.faults.rerun_action)});
  } else {
    step_check_ = std::make_unique<FiniteCheck>(parts_, job, stops);
  }
  logging_steps_ = interval(a.logging.strategy, a.logging.steps, plan_.max_steps);
  eval_steps_ =
      interval(a.evaluation.strategy, a.evaluation.steps > 0 ? a.evaluation.steps : a.logging.steps, plan_.max_steps);
  save_steps_ = interval(a.saving.strategy, a.saving.steps, plan_.max_steps);
  state_.max_steps = plan_.max_steps;
  state_.num_train_epochs =
      a.steps.has_length()
          ? std::ceil(static_cast<double>(plan_.max_steps) / static_cast<double>(plan_.train_data->batches(0)))
          : a.steps.num_train_epochs;
  state_.is_world_process_zero = job.rank() == 0;
  if (plan_.continues()) restore(read_training_state(plan_.resume_from));
  // Every checkpoint has it. It may take a second, which the first save would keep the loop waiting for.
  if (a.saving.strategy != "no" && !a.saving.only_model) plan_.train_data->identity();
}

Trainer::~Trainer() = default;

template <class Call>
void Trainer::notify(Call call) {
  for (const auto& callback : callbacks_) call(*callback);
}

TrainOutput Trainer::train() {
  const StopRequest stop(StopRequest::Phase::running, plan_.arguments.saving.exit_signal_grace);
  stop_ = &stop;
  begin_ = Clock::now();
  last_log_ = begin_ - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(window_.seconds));
  first_step_ = state_.global_step;
  first_sample_ = plan_.train_data->position().consumed;
  notify([&](TrainerCallback& c) { c.on_train_begin(plan_.arguments, state_, control_); });
  agree();
  parts_.precompute_reference(plan_);
  pulse_.enter(RankPhase::training);
  clock_.restart();
  while (state_.global_step < plan_.max_steps && !control_.should_training_stop) {
    const int64_t done = state_.global_step;
    profile_.begin_step(done);
    const std::optional<std::vector<MicroBatch>> batches = next_batches();
    if (!batches) break;  // the data has ended
    begin_step();
    const int64_t step = state_.global_step + 1;
    record(plan_.skipped_steps.contains(step) ? skipped_step(parts_)
                                              : train_step(parts_, job_, *batches, step, *step_check_));
    profile_.end_step(done);
    update_control();
    agree();
    if (is_due(state_.global_step, plan_.arguments.faults.check_replicas_steps)) check_replicas();
    advance_save();
    apply_control();
    remember();
    pulse_.step_done(state_.global_step);
  }
  pulse_.enter(RankPhase::ending);
  profile_.finish();
  memory_.abandon();
  complete_save();
  if (plan_.arguments.saving.strategy != "no") save_last_step();
  if (plan_.arguments.best_model.load_at_end) load_best_model();
  TrainOutput result = output(seconds_since(begin_));
  if (plan_.test_data && state_.global_step >= plan_.max_steps) result.test_metrics = test().metrics;
  stop_ = nullptr;
  return result;
}

void Trainer::save_last_step() {
  if (last_saved_ != state_.global_step) {
    save_checkpoint(SaveJob::Source::live);
    complete_save();
  } else if (job_.rank() == plan_.writing_rank()) {  // nothing to save where a run is resumed at its last step
    rotate_checkpoints(plan_.arguments.output.dir, plan_.arguments.saving.total_limit, state_.best.checkpoint);
  }
}

std::optional<std::vector<MicroBatch>> Trainer::next_batches() {
  const StepClock::Span span(clock_, StepClock::Activity::data);
  const StepTimers::Span timer(parts_.timers, StepPart::data);
  auto batches = next_micro_batches(*plan_.train_data);
  const int64_t ranks = job_.layout().dp(), rank = job_.coordinates().dp;
  for (size_t i = 0; batches && i < batches->size(); ++i) {  // as the batcher deals rows (BatchShape::row_at)
    MicroBatch& batch = (*batches)[i];
    batch.draws = {state_.global_step + 1, (static_cast<int64_t>(i) * ranks + rank) * batch.input_ids.size(0)};
  }
  return batches;
}

void Trainer::begin_step() {
  if (steps_in_epoch_ == 0) notify([&](TrainerCallback& c) { c.on_epoch_begin(state_, control_); });
  notify([&](TrainerCallback& c) { c.on_step_begin(state_, control_); });
}

// |step| is done: what the state, the log line and the mean loss say of it.
void Trainer::record(const StepOutput& step) {
  last_ = step;
  routers_.add(parts_.stages);
  if (step.counted > 0) objective_.add(*parts_.stages.back(), parts_.pairs.get());
  if (step.counted > 0) further_.add(*parts_.stages.back());
  if (step.counted > 0) losses_.add(step.loss, parts_.loss_rule.per_token ? step.counted : 0);
  const BatchContents& contents = plan_.train_data->contents();
  window_.add_step(step.counted > 0, step.updated, step.grad_norm);
  window_.add_batch(contents);
  ++state_.global_step;
  ++steps_in_epoch_;
  state_.tokens += contents.tokens;
  state_.epoch = plan_.train_data->epochs();
  parts_.timers.end_step();
  clock_.end_step(state_.global_step);
}

// By the arguments and this rank's callbacks; the ranks agree afterwards.
void Trainer::update_control() {
  const int64_t step = state_.global_step;
  control_.should_log = is_due(step, logging_steps_) || (step == 1 && plan_.arguments.logging.first_step);
  control_.should_evaluate = is_due(step, eval_steps_);
  control_.should_save = is_due(step, save_steps_);
  exit_reason_ = exit_reason();
  control_.should_training_stop |= !exit_reason_.empty();
  if (plan_.train_data->epoch() > epoch_) end_epoch();
  notify([&](TrainerCallback& c) { c.on_step_end(state_, control_); });
}

// The argument by which the run ends after this step, on this rank; empty: none.
std::string Trainer::exit_reason() const {
  const StepArguments& steps = plan_.arguments.steps;
  if (is_due(state_.global_step, steps.exit_interval)) return "exit_interval";
  const bool is_over = steps.exit_duration_in_mins > 0 && seconds_since(begin_) > 60 * steps.exit_duration_in_mins;
  return is_over ? "exit_duration_in_mins" : "";
}

void Trainer::end_epoch() {
  const TrainingArguments& a = plan_.arguments;
  control_.should_log |= a.logging.strategy == "epoch";
  control_.should_evaluate |= a.evaluation.strategy == "epoch";
  control_.should_save |= a.saving.strategy == "epoch";
  steps_in_epoch_ = 0;
  ++epoch_;
  notify([&](TrainerCallback& c) { c.on_epoch_end(state_, control_); });
}

// What one rank requests, in its callbacks or by a signal, happens on all, after the same step. Waits: for all ranks.
void Trainer::agree() {
  if (stop_->requested()) stop_signal_ = stop_->signal();
  control_.should_training_stop |= stop_signal_ != 0;
  save_progress_ = save_ ? save_->progress() : SaveJob::Progress::through;
  memory_progress_ = memory_.progress();
  if (job_.world() == 1) return;
  const at::Tensor wishes =
      at::tensor({int64_t{control_.should_training_stop}, int64_t{control_.should_log},
                  int64_t{control_.should_evaluate}, int64_t{control_.should_save}, int64_t{stop_signal_},
                  static_cast<int64_t>(save_progress_), static_cast<int64_t>(memory_progress_)},
                 at::TensorOptions().dtype(at::kLong))
          .to(job_.torch_device());
  job_.world_group().all_reduce(wishes, ReduceOp::kMax).wait();
  const at::Tensor agreed = wishes.to(at::kCPU);
  const int64_t* values = agreed.data_ptr<int64_t>();
  control_ = {values[0] != 0, values[1] != 0, values[2] != 0, values[3] != 0};
  stop_signal_ = static_cast<int>(values[4]);
  save_progress_ = static_cast<SaveJob::Progress>(values[5]);
  memory_progress_ = static_cast<SaveJob::Progress>(values[6]);
}

// In each of the three, a callback on one rank can request another of them, or the end.
void Trainer::apply_control() {
  const TrainingArguments& a = plan_.arguments;
  const bool is_finished = state_.global_step == plan_.max_steps;
  // A run that can be resumed is going to log the steps that it has not logged yet, as if it had not been stopped.
  const bool can_resume = a.saving.strategy != "no" && !a.saving.only_model;
  const bool is_last = is_finished || (control_.should_training_stop && !can_resume);
  control_.should_log |= is_last && a.logging.strategy != "no";
  // As HF does: the last epoch ends with the run, wherever that is. As Megatron does: whatever the interval is.
  control_.should_evaluate |= is_finished && a.evaluation.strategy != "no";
  if (std::exchange(control_.should_log, false)) {
    log();
    agree();
  }
  if (std::exchange(control_.should_evaluate, false)) {
    best_.evaluated(state_.global_step, evaluate().metrics);
    state_.best = best_.result();
    if (best_.should_stop()) {
      control_.should_training_stop = true;
      exit_reason_ = "early_stopping_patience";
    }
    agree();
  }
  if (std::exchange(control_.should_save, false)) {
    save_checkpoint(a.saving.async ? SaveJob::Source::copy : SaveJob::Source::live);
    agree();
  }
}

// Once a step at most. Waits: for all ranks.
void Trainer::check_replicas() {
  const FaultArguments& faults = plan_.arguments.faults;
  if (faults.check_replicas_steps == 0 || replicas_checked_ == state_.global_step) return;
  replicas_checked_ = state_.global_step;
  const std::optional<ReplicaDifference> difference = replicas_.run();
  if (!difference) return;
  const std::string words = replica_mismatch_message(*difference, state_.global_step);
  if (job_.rank() == 0) RecoveryLog().wrong(state_.global_step, difference->culprit, words);
  if (faults.on_replica_mismatch == "stop") {
    if (difference->culprit) job_.flight().peers().blame(*difference->culprit);
    throw Error(CONCORD_STATUS_FAILED_PRECONDITION, words);
  }
  if (job_.rank() == 0) loader::log(CONCORD_LOG_WARN, "train", words);
}

void Trainer::log() {
  const StepClock::Span span(clock_, StepClock::Activity::other);
  StepReport report;
  report.loss = losses_.take_mean();
  report.step = state_.global_step;
  report.epoch = state_.epoch;
  report.learning_rate = last_.learning_rate;
  report.grad_norm = window_.last_grad_norm;
  report.skipped = window_.skipped;
  report.next_loss_scale = parts_.scaler ? parts_.loss_scale() : 0;
  report.tokens = window_.tokens;
  report.samples = window_.samples;
  report.squared_lengths = window_.squared_lengths;
  report.seconds = seconds_since(last_log_);
  report.memory_bytes = memory_in_use(job_);
  report.extra = group_learning_rates(plan_.arguments.groups, last_.learning_rate, last_.decoupled_learning_rate);
  if (window_.steps > 1) report.extra.emplace_back("grad_norm_max", window_.largest_grad_norm);
  if (parts_.scaler) report.extra.emplace_back("loss_scale", last_.loss_scale);
  if (parts_.scaler || window_.skipped > 0) {
    report.extra.emplace_back("skipped_iter", static_cast<double>(window_.skipped));
  }
  if (window_.untrained > 0) report.extra.emplace_back("untrained_iter", static_cast<double>(window_.untrained));
  if (plan_.arguments.optimizer.log_num_zeros_in_grad) {
    report.extra.emplace_back("num_zeros_in_grad", static_cast<double>(last_.zeros));
  }
  if (plan_.arguments.logging.params_norm) report.extra.emplace_back("params_norm", parts_.optimizer.params_norm());
  if (!plan_.arguments.steps.rampup_batch_size.empty()) {
    report.extra.emplace_back("global_batch_size", static_cast<double>(plan_.train_data->batch_rows()));
  }
  for (auto& metric : routers_.take()) report.extra.push_back(std::move(metric));
  for (auto& metric : objective_.take()) report.extra.push_back(std::move(metric));
  for (auto& metric : further_.take()) report.extra.push_back(std::move(metric));
  if (window_.save_seconds > 0) report.extra.emplace_back("save_seconds", window_.save_seconds);
  for (auto& metric : parts_.timers.take()) report.extra.push_back(std::move(metric));
  detect_stragglers(&report);
  window_ = {};
  last_log_ = Clock::now();
  notify([&](TrainerCallback& c) { c.on_log(state_, report, control_); });
}

// All ranks have the same table and so come to the same verdict. Waits: for all ranks.
void Trainer::detect_stragglers(StepReport* report) {
  report->ranks = clock_.take();
  if (!report->ranks) return;
  for (auto& metric : rank_metrics(*report->ranks)) report->extra.push_back(std::move(metric));
  for (const Straggler& straggler : stragglers_.add(*report->ranks)) {
    if (straggler_action_ != StragglerAction::none && job_.rank() == 0)
      loader::log(CONCORD_LOG_WARN, "train", to_string(straggler));
    if (straggler_action_ == StragglerAction::replace && straggler.rank == job_.rank()) replace_this_rank(straggler);
  }
}

// Throws, where it may: the launcher then starts all ranks again, from the newest checkpoint.
void Trainer::replace_this_rank(const Straggler& straggler) {
  const std::optional<int64_t> times = pulse_.begin_replacement(kMaxReplacements);
  if (!times) {
    loader::log(CONCORD_LOG_WARN, "train",
                fmt::format("rank {} is kept: it was replaced {} times already, or there is no checkpoint or no "
                            "launcher of concord to start it again",
                            straggler.rank, kMaxReplacements));
    return;
  }
  job_.flight().peers().blame(straggler.rank);
  throw Error(CONCORD_STATUS_UNAVAILABLE, fmt::format("{}; it is replaced (time {} of at most {})",
                                                      to_string(straggler), *times, kMaxReplacements));
}

EvalLoopOutput Trainer::evaluate() {
  return with_average(parts_.optimizer, plan_.arguments.evaluation.uses_ema, [this] { return evaluate_weights(); });
}

EvalLoopOutput Trainer::evaluate_weights() {
  if (plan_.eval_sets.empty()) throw ConfigError("no evaluation data; give --eval_data");
  const StepClock::Span span(clock_, StepClock::Activity::other);
  const PhaseScope phase(&pulse_, RankPhase::evaluating);
  const Clock::time_point begin = Clock::now();
  EvalLoopOutput output;
  NamedValues extra;
  ObjectiveLog objective(job_, measures_tokens(plan_.arguments));
  for (EvaluationSet& set : plan_.eval_sets) {
    const std::string name = set.name.empty() ? "eval" : "eval_" + set.name;
    const EvalLoopOutput one = evaluate_set(*set.data, name, &objective, &extra);
    if (one.num_samples == 0) return {};
    if (!set.name.empty()) {
      extra.emplace_back(fmt::format("eval_{}_loss", set.name), one.loss);
      if (!parts_.pairs) extra.emplace_back(fmt::format("eval_{}_perplexity", set.name), std::exp(one.loss));
      if (plan_.arguments.evaluation.accuracy)
        extra.emplace_back(fmt::format("eval_{}_accuracy", set.name), one.accuracy);
    }
    output = together(output, one);
  }
  if (plan_.arguments.evaluation.accuracy) extra.emplace_back("eval_accuracy", output.accuracy);
  for (auto& metric : objective.take("eval_")) extra.push_back(std::move(metric));
  for (auto& metric : non_loss_metrics()) extra.push_back(std::move(metric));
  const double seconds = seconds_since(begin);
  output.metrics = eval_metrics("eval", output, seconds, parts_.pairs != nullptr, extra);
  const EvalReport report{.step = state_.global_step,
                          .epoch = state_.epoch,
                          .loss = output.loss,
                          .tokens = output.tokens,
                          .seconds = seconds,
                          .extra = std::move(extra),
                          .samples = samples_.generate(parts_.model)};
  notify([&](TrainerCallback& c) { c.on_evaluate(state_, report, control_); });
  last_log_ += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  return output;
}

// Waits: for the ranks of the pipeline.
NamedValues Trainer::non_loss_metrics() {
  if (!process_non_loss_data_) return {};
  const at::NoGradGuard no_grad;
  const ModelStage& last = *parts_.stages.back();
  const std::vector<at::Tensor> data = non_loss_data_ ? non_loss_data_(parts_.model) : last.token_losses();
  NamedValues metrics =
      of_last_stage(job_, last.is_last() ? process_non_loss_data_(data, state_.global_step) : NamedValues());
  for (auto& [name, value] : metrics) name = "eval_" + name;
  return metrics;
}

EvalLoopOutput Trainer::test() {
  if (!plan_.test_data) throw ConfigError("no test data; give --test_data");
  const PhaseScope phase(&pulse_, RankPhase::evaluating);
  const Clock::time_point begin = Clock::now();
  ObjectiveLog objective(job_, measures_tokens(plan_.arguments));
  NamedValues extra;
  EvalLoopOutput output = with_average(parts_.optimizer, plan_.arguments.evaluation.uses_ema,
                                       [&] { return evaluate_set(*plan_.test_data, "test", &objective, &extra); });
  if (output.num_samples == 0) return output;
  for (auto& metric : objective.take("test_")) extra.push_back(std::move(metric));
  if (plan_.arguments.evaluation.accuracy) extra.emplace_back("test_accuracy", output.accuracy);
  output.metrics = eval_metrics("test", output, seconds_since(begin), parts_.pairs != nullptr, extra);
  return output;
}

struct Trainer::EvalTotals {
  LossTotals losses, right;
  ObjectiveLog* objective;
  std::optional<Predictions> predictions;  // none: nobody wants them
};

// Without samples where it was abandoned. Adds what compute_metrics says to |extra|.
EvalLoopOutput Trainer::evaluate_set(DataLoader& data, const std::string& name, ObjectiveLog* objective,
                                     NamedValues* extra) {
  const EvaluationArguments& asked = plan_.arguments.evaluation;
  const bool is_written = asked.predict && name == "test";
  const bool has_metrics = compute_metrics_ && !asked.loss_only;
  const DataPosition start = data.position();
  EvalTotals totals{LossTotals(job_), LossTotals(job_), objective, {}};
  if (has_metrics || is_written) totals.predictions.emplace(job_);
  const bool is_complete = evaluate_batches(data, &totals);
  data.restore(start);
  if (!is_complete) return {};
  const auto [loss, tokens] = totals.losses.mean_and_count();
  const int64_t samples = std::min(data.samples(), batches_of(data, plan_.arguments) * data.global_batch_size());
  if (totals.predictions) {
    const std::vector<PredictedSample> predicted = totals.predictions->take(samples);
    const bool has_them = parts_.stages.back()->is_last();
    const bool writes = has_them && job_.rank() == first_of_stage(job_.layout(), job_.rank(), plan_.writers);
    if (is_written && writes)
      write_predictions(std::filesystem::path(plan_.arguments.output.dir) / "predictions.jsonl", predicted);
    if (has_metrics) {
      const NamedValues own = has_them ? compute_metrics_(predicted) : NamedValues();
      for (const auto& [metric, value] : of_last_stage(job_, own)) extra->emplace_back(name + "_" + metric, value);
    }
  }
  return {.loss = loss,
          .num_samples = samples,
          .tokens = tokens,
          .accuracy = asked.accuracy ? totals.right.mean_and_count().first : 0,
          .metrics = {}};
}

// False after a signal: the ranks leave after the same batch.
bool Trainer::evaluate_batches(DataLoader& data, EvalTotals* totals) {
  const LossRule rule{.per_token = true, .pairs = parts_.loss_rule.pairs};
  StopAgreement agreement(job_, stop_);
  ModelChunk& chunk = parts_.model[parts_.model.size() - 1];
  std::optional<ArgmaxPredictions> ranked;
  if (plan_.arguments.evaluation.accuracy || totals->predictions) {
    ranked.emplace(chunk, plan_.config.vocab_size, job_.group(GroupKind::tp));
  }
  const int64_t batches = batches_of(data, plan_.arguments);
  for (int64_t i = 0; i < batches; ++i) {
    if (agreement.is_reached()) return false;
    const std::vector<MicroBatch> host_batches = *next_micro_batches(data);
    const std::vector<MicroBatch> device_batches = to_device(host_batches, job_.torch_device());
    parts_.prepare_pairs(host_batches, device_batches, TrainingParts::Data::eval);
    parts_.begin_evaluation(device_batches);
    parts_.forward_executor.run();
    totals->objective->add(*parts_.stages.back(), parts_.pairs.get());
    const ModelStage& last = *parts_.stages.back();
    const at::Tensor losses = logged_losses(last, loss_weights(host_batches, rule), rule);
    const int64_t counted = last.is_last() ? parts_.counted(host_batches) : 0;
    totals->losses.add(losses.sum(), counted);
    if (ranked) {
      const std::vector<at::Tensor> predicted = ranked->take(device_batches.size());
      totals->right.add(last.is_last() ? count_right(chunk, device_batches, predicted) : at::zeros({}, at::kFloat),
                        counted);
      if (totals->predictions && last.is_last()) {
        totals->predictions->add(chunk, device_batches, last.token_losses(), predicted, i * data.global_batch_size(),
                                 data.samples());
      }
    }
    pulse_.beat();
  }
  return true;
}

void Trainer::save_model(const std::filesystem::path& folder) { parts_.model.save_pretrained(folder, save_options()); }

void Trainer::save_average(const std::filesystem::path& folder) {
  if (!parts_.optimizer.keeps_average()) throw ConfigError("no average of the weights is kept; give --ema_decay");
  parts_.optimizer.swap_ema_weights();
  save_model(folder);
  parts_.optimizer.swap_ema_weights();
}

HfSaveOptions Trainer::save_options() const {
  return {.source = plan_.arguments.model.path,
          .tokenizer_files = plan_.tokenizer_files,
          .overwrite = plan_.is_restarted || plan_.continues(),
          .writers = plan_.writers};
}

// Starts one; a live one is complete afterwards. One at a time: an unfinished one is waited for, or comes first.
void Trainer::save_checkpoint(SaveJob::Source source) {
  const PhaseScope phase(&pulse_, source == SaveJob::Source::live ? RankPhase::writing : RankPhase::saving);
  const StepClock::Span span(clock_, StepClock::Activity::saving);
  const StepTimers::Span timer(parts_.timers, StepPart::save);
  const Clock::time_point begin = Clock::now();
  if (save_ && plan_.arguments.saving.when_busy == "skip") {
    if (job_.rank() == 0) {
      loader::log(CONCORD_LOG_WARN, "train",
                  fmt::format("the checkpoint of step {} is skipped: that of step {} is still being written",
                              state_.global_step, last_saved_));
    }
    return;
  }
  const bool has_to_wait = save_ && source == SaveJob::Source::copy;
  complete_save();
  if (has_to_wait) note_save_wait(Clock::now() - begin);
  const std::filesystem::path folder = checkpoint_folder(plan_.arguments.output.dir, state_.global_step);
  if (is_in_the_way(folder)) return;
  check_replicas();
  best_.saved(state_.global_step);
  state_.best = best_.result();
  const bool is_kept = !plan_.arguments.saving.only_model;
  if (is_kept && !std::filesystem::exists(folder)) {
    pulse_.begins_to_write(state_.global_step, std::filesystem::absolute(folder).string());
  }
  save_begin_ = Clock::now();
  save_ = parts_.model.start_save(folder, checkpoint_options(), source, save_plan_);
  save_plan_ = save_->plan();
  last_saved_ = state_.global_step;
  last_saved_updates_ = parts_.optimizer.steps();
  if (source == SaveJob::Source::live) complete_save();
  const Clock::duration waited = Clock::now() - begin;
  last_log_ += waited;  // tokens per second count training time only
  window_.save_seconds += std::chrono::duration<double>(waited).count();
}

// Whether something that Concord did not write is called |folder| on a machine that writes it. It stays.
bool Trainer::is_in_the_way(const std::filesystem::path& folder) {
  std::error_code ignored;
  const bool is_foreign = job_.rank() == plan_.writing_rank() && std::filesystem::exists(folder, ignored) &&
                          !std::filesystem::is_empty(folder, ignored) && !is_own_checkpoint(folder);
  if (is_foreign) {
    loader::log(
        CONCORD_LOG_WARN, "train",
        fmt::format("the checkpoint of step {} is skipped: {} exists and was not written by Concord; move it away",
                    state_.global_step, folder.string()));
  }
  return all_reduce_scalar(job_, is_foreign ? 1 : 0, ReduceOp::kMax) != 0;
}

HfSaveOptions Trainer::checkpoint_options() {
  HfSaveOptions options = save_options();
  options.manifest = true;
  options.memory_limit = static_cast<int64_t>(plan_.arguments.saving.memory_limit * kGiB);
  // Where a checkpoint is removed that may take a while; the training goes on.
  options.after_publish = [output_dir = plan_.arguments.output.dir, limit = plan_.arguments.saving.total_limit,
                           best = state_.best.checkpoint] { rotate_checkpoints(output_dir, limit, best); };
  notify([&](TrainerCallback& c) {
    for (auto& file : c.checkpoint_files(state_)) options.more_files.push_back(std::move(file));
  });
  if (plan_.arguments.saving.only_model) return options;
  add_state(&options);
  const bool has_changed = parts_.optimizer.steps() != last_saved_updates_ && last_.learning_rate > 0;
  if (has_changed) options.stale_digest = digest_;
  return options;
}

// What a run needs besides the weights to go on.
void Trainer::add_state(HfSaveOptions* options) {
  options->more.push_back(saved_tensors(parts_.optimizer, options->writers));
  if (std::optional<SavedTensors> fp8 = parts_.model.saved_fp8(options->writers)) {
    options->more.push_back(std::move(*fp8));
  }
  options->more_files.emplace_back(kMetadataFile, to_json(training_state()));
}

// A checkpoint in memory, where one is due. Not while one is written to the disk: a restart then goes back to before
// that save and repeats it, so that no checkpoint is missing afterwards.
void Trainer::remember() {
  if (save_ || !memory_.is_due(state_.global_step)) return;
  check_replicas();  // what a restart goes on from is right
  const PhaseScope phase(&pulse_, RankPhase::saving);
  const StepClock::Span span(clock_, StepClock::Activity::saving);
  const Clock::time_point begin = Clock::now();
  HfSaveOptions options{.manifest = true};
  notify([&](TrainerCallback& c) {
    for (auto& file : c.checkpoint_files(state_)) options.more_files.push_back(std::move(file));
  });
  add_state(&options);
  memory_.start(parts_.model, state_.global_step, std::move(options));
  last_log_ += Clock::now() - begin;  // as for other checkpoints
}

// Once a step, on all ranks, after they have agreed.
void Trainer::advance_save() {
  if (memory_.advance(memory_progress_)) pulse_.saved(memory_.newest(), /*is_kept=*/false);
  if (!save_) return;
  const StepClock::Span span(clock_, StepClock::Activity::saving);
  save_->advance(save_progress_);
  if (!save_->is_done()) return;
  finish_save();
  agree();
}

// Waits: until the checkpoint that is being written is there.
void Trainer::complete_save() {
  if (!save_) return;
  const PhaseScope phase(&pulse_, RankPhase::writing);
  save_->wait();
  finish_save();
}

void Trainer::note_save_wait(Clock::duration waited) {
  const auto in_seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  const SaveWait wait{.previous = last_saved_,
                      .step = state_.global_step,
                      .seconds = in_seconds(Clock::now() - save_begin_),
                      .waited = in_seconds(waited)};
  if (has_noted_wait_ || job_.rank() != 0 || !wait.is_noticeable()) return;
  has_noted_wait_ = true;
  loader::log(CONCORD_LOG_WARN, "train", to_string(wait));
}

void Trainer::finish_save() {
  const std::string folder = save_->folder();
  digest_ = save_->digest();
  save_.reset();
  pulse_.saved(last_saved_, /*is_kept=*/!plan_.arguments.saving.only_model);
  notify([&](TrainerCallback& c) { c.on_save(state_, folder, control_); });
}

// Everything but tensors that the next step depends on, and what is logged of the steps so far. Waits: for all ranks.
TrainingState Trainer::training_state() {
  TrainingState state;
  state.step = state_.global_step;
  state.tokens = state_.tokens;
  state.epoch = epoch_;
  state.steps_in_epoch = steps_in_epoch_;
  state.data = plan_.train_data->position();
  describe_run(plan_, &state);
  best_.save(&state);
  state.optimizer_steps = parts_.optimizer.steps();
  state.lr_counter = parts_.lr.counter();
  if (parts_.scaler) state.loss_scaler = parts_.scaler->state();
  losses_.save(&state);
  state.window = window_;
  state.window.seconds = seconds_since(last_log_);
  state.layout = saved_layout(plan_, job_);
  state.rng = all_generators(job_);
  return state;
}

void Trainer::restore(const TrainingState& state) {
  const ResumeParts& taken = plan_.resume_parts;
  check_resumable(plan_.resume_from, state, plan_, taken);
  if (taken.optimizer) {
    parts_.optimizer.load_state(OptimizerFiles(plan_.resume_from, state.optimizer_steps),
                                reads_together(plan_.arguments, plan_.resume_from, job_));
    parts_.lr.set_counter(continued_lr_counter(state, parts_.lr.settings()));
    parts_.model.load_fp8(plan_.resume_from);
    if (parts_.scaler && state.loss_scaler) parts_.scaler->set_state(*state.loss_scaler);
  }
  if (taken.rng) restore_generators(state, plan_, job_);
  if (taken.data) {
    plan_.train_data->restore(state.data);
    epoch_ = state.epoch;
    steps_in_epoch_ = state.steps_in_epoch;
  }
  losses_.restore(state);
  window_ = state.window;
  best_.restore(state, plan_.resume_from);
  state_.best = best_.result();
  state_.global_step = state.step;
  const std::filesystem::path own = checkpoint_folder(plan_.arguments.output.dir, state.step);
  std::error_code ignored;
  if (std::filesystem::equivalent(own, plan_.resume_from, ignored)) last_saved_ = state.step;
  state_.tokens = state.tokens;
  state_.epoch = plan_.train_data->epochs();
}

// The model becomes that of the best checkpoint, which is complete by now; the run has ended.
void Trainer::load_best_model() {
  const std::string& folder = state_.best.checkpoint;
  if (folder.empty()) {
    if (job_.rank() != 0) return;
    loader::log(
        CONCORD_LOG_WARN, "train",
        "load_best_model_at_end: no step was both evaluated and saved; the final model is that of the last step");
    return;
  }
  parts_.data_parallel.finish_param_gather();
  parts_.model.load_saved(folder, reads_together(plan_.arguments, folder, job_));
  parts_.optimizer.reload_main_weights();
}

TrainOutput Trainer::output(double seconds) {
  losses_.take_mean();
  TrainOutput result;
  result.global_step = state_.global_step;
  result.training_loss = losses_.mean_so_far();
  if (state_.global_step >= plan_.max_steps) {
    result.reason = "finished";
  } else if (stop_signal_ != 0) {
    result.stop_signal = stop_signal_;
    result.reason = fmt::format("stopped by {} after step {}", stop_signal_name(stop_signal_), state_.global_step);
  } else {
    result.reason =
        fmt::format("stopped{}{} after step {}", exit_reason_.empty() ? "" : " by ", exit_reason_, state_.global_step);
  }
  const double steps = static_cast<double>(state_.global_step - first_step_);
  const double samples = static_cast<double>(plan_.train_data->position().consumed - first_sample_);
  result.metrics = {{"train_runtime", seconds},
                    {"train_samples_per_second", samples / seconds},
                    {"train_steps_per_second", steps / seconds},
                    {"train_loss", result.training_loss},
                    {"epoch", state_.epoch}};
  return result;
}

}  // namespace concord
