#include "trainer/trainer.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "core/config_error.h"
#include "core/data_parallel/finalize_grads.h"
#include "platform/loader/error.h"
#include "platform/loader/host.h"
#include "trainer/data/to_micro_batch.h"
#include "trainer/device_batch.h"
#include "trainer/output_folder.h"
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

bool is_due(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

}  // namespace

void LogWindow::add(const StepOutput& step) {
  ++steps;
  if (!step.updated) {
    ++skipped;
    return;
  }
  last_grad_norm = step.grad_norm;
  largest_grad_norm = std::fmax(largest_grad_norm, step.grad_norm);
}

void LogWindow::add(const BatchContents& contents) {
  tokens += contents.tokens;
  samples += contents.samples;
  squared_lengths += contents.squared_lengths;
}

Trainer::Trainer(TrainingPlan plan, ParallelContext& job, const Providers& providers)
    : plan_(std::move(plan)),
      job_(job),
      parts_(plan_, job, providers),
      losses_(job, plan_.arguments.logging.nan_inf_filter) {
  const TrainingArguments& a = plan_.arguments;
  // With fp16 a NaN or Inf loss means a skipped step, which its gradients show.
  checks_loss_ = a.precision.check_for_nan_in_loss_and_grad && !a.precision.fp16;
  logging_steps_ = interval(a.logging.strategy, a.logging.steps, plan_.max_steps);
  eval_steps_ =
      interval(a.evaluation.strategy, a.evaluation.steps > 0 ? a.evaluation.steps : a.logging.steps, plan_.max_steps);
  save_steps_ = interval(a.saving.strategy, a.saving.steps, plan_.max_steps);
  state_.max_steps = plan_.max_steps;
  state_.num_train_epochs =
      a.steps.max_steps > 0
          ? std::ceil(static_cast<double>(a.steps.max_steps) / static_cast<double>(plan_.train_data->batches(0)))
          : a.steps.num_train_epochs;
  state_.is_world_process_zero = job.rank() == 0;
  last_.updated = true;  // no step has been skipped yet
}

Trainer::~Trainer() = default;

template <class Call>
void Trainer::notify(Call call) {
  for (const auto& callback : callbacks_) call(*callback);
}

TrainOutput Trainer::train() {
  const StopRequest stop(StopRequest::Phase::running, plan_.arguments.saving.exit_signal_grace);
  stop_ = &stop;
  const Clock::time_point begin = last_log_ = Clock::now();
  notify([&](TrainerCallback& c) { c.on_train_begin(plan_.arguments, state_, control_); });
  agree();
  while (state_.global_step < plan_.max_steps && !control_.should_training_stop && next_step()) {
  }
  if (plan_.arguments.saving.strategy != "no" && last_saved_ != state_.global_step) save_checkpoint();
  stop_ = nullptr;
  return output(seconds_since(begin));
}

// False at the end of the data.
bool Trainer::next_step() {
  const DataPosition position = plan_.train_data->position();
  const std::optional<std::vector<MicroBatch>> batches = next_micro_batches(*plan_.train_data);
  if (batches && settled_) begin_step();
  if (batches && run_step(*batches)) {
    if (!parts_.validates_later) check_step(state_.global_step + 1);
    remember();
    decide_what_follows();
    if (!settles_now_) return true;
  } else if (batches) {
    plan_.train_data->restore(position);  // something else has to happen first
  }
  settle();
  check_step(state_.global_step);
  do_what_follows();
  return batches.has_value();
}

StepOutput Trainer::train_step(const std::vector<MicroBatch>& batches) {
  run_step(batches);
  settle_update();
  if (loss_check_) loss_check_->require_finite(state_.global_step + 1);
  return last_;
}

// False if something has to happen after the previous step, and this one was not run.
bool Trainer::run_step(const std::vector<MicroBatch>& host_batches) try {
  StepOutput step;
  step.learning_rate = parts_.lr.lr();
  step.loss_scale = parts_.loss_scale();
  const std::vector<double> weights = loss_weights(host_batches, parts_.loss_rule);
  const std::vector<MicroBatch> batches = to_device(host_batches, job_.torch_device());
  parts_.begin(batches, weights);
  // Forward and backward of every micro-batch.
  if (!parts_.executor.run([&] { return after_warm_up(batches.size()); })) return false;
  const at::Tensor losses = logged_losses(*parts_.stages.back(), weights, parts_.loss_rule);
  step.loss = losses.sum();
  loss_check_.reset();
  if (checks_loss_) loss_check_.emplace(losses, job_);
  step.counted = finalize_grads(parts_.data_parallel, {.tokens = parts_.counted_tokens(host_batches)});
  last_ = step;
  noted_ = false;
  if (last_.counted > 0) {
    update();
  } else if (job_.rank() == 0) {
    loader::log(
        CONCORD_LOG_WARN, "train",
        fmt::format("step {} is skipped: it has no token that counts in the loss, all labels are ignored (-100)",
                    state_.global_step + 1));
  }
  return true;
} catch (const Error&) {
  if (checks_loss_) blame_the_loss();
  throw;
}

void Trainer::update() {
  const StepSettings settings{
      .lr = last_.learning_rate, .weight_decay = parts_.lr.weight_decay(), .loss_scale = last_.loss_scale};
  if (parts_.validates_later) {
    parts_.optimizer.step_ahead(settings);
    parts_.lr.step();  // a skipped update ends the run, or leaves a gap in the schedule
    return;
  }
  record(parts_.optimizer.step(settings));
  if (parts_.scaler) parts_.scaler->update(!last_.updated);
  if (last_.updated) parts_.lr.step();
}

// A non-finite loss also makes non-finite gradients, and these are found first. Throws if the loss was the cause.
void Trainer::blame_the_loss() const {
  try {
    require_finite_losses(parts_.stages.back()->token_losses(), state_.global_step + 1, job_);
  } catch (const c10::Error&) {
  }  // the device itself has failed; its first error is the better report
}

// The previous step becomes final here; its gradients were kept until now.
Resume Trainer::after_warm_up(size_t micro_batches) {
  if (!settled_) {
    const bool taken_back = settle();
    const TrainerControl& c = control_;
    const bool comes_first = c.should_training_stop || c.should_log || c.should_evaluate || c.should_save;
    if (comes_first || !last_.updated) return Resume::stop;
    check_step(state_.global_step);
    begin_step();
    parts_.data_parallel.begin_step(static_cast<int64_t>(micro_batches));
    return taken_back ? Resume::again : Resume::go_on;
  }
  parts_.data_parallel.begin_step(static_cast<int64_t>(micro_batches));
  return Resume::go_on;
}

void Trainer::record(const StepResult& update) {
  last_.updated = update.updated;
  last_.grad_norm = update.grad_norm;
  last_.zeros = update.zeros;
}

// Waits: for all ranks. True if the update was corrected after it was first applied.
bool Trainer::settle_update() {
  bool taken_back = false;
  if (!parts_.optimizer.is_settled()) {
    const SettledStep settled = parts_.optimizer.settle();
    record(settled.result);
    taken_back = settled.taken_back;
  }
  note_step();
  return taken_back;
}

// Once per step, when its result is known.
void Trainer::note_step() {
  if (!std::exchange(noted_, true)) window_.add(last_);
}

void Trainer::check_step(int64_t step) const {
  if (loss_check_) loss_check_->require_finite(step);
  if (last_.updated || parts_.scaler || last_.counted == 0) return;
  if (!plan_.arguments.precision.check_for_nan_in_loss_and_grad) return;
  throw Error(CONCORD_STATUS_INTERNAL,
              fmt::format("the gradient of step {} is not finite (norm {}); try a lower learning_rate or "
                          "max_grad_norm, and use `concord probe` to find the first affected layer",
                          step, last_.grad_norm));
}

void Trainer::remember() {
  if (last_.counted > 0) losses_.add(last_.loss, parts_.loss_rule.per_token ? last_.counted : 0);
  ++state_.global_step;
  ++steps_in_epoch_;
  const BatchContents& contents = plan_.train_data->contents();
  state_.tokens += contents.tokens;
  window_.add(contents);
  state_.epoch = static_cast<double>(epoch_) +
                 static_cast<double>(steps_in_epoch_) / static_cast<double>(plan_.train_data->batches(epoch_));
}

// Once the step is certain: in its warm-up if the previous one had to be settled.
void Trainer::begin_step() {
  if (steps_in_epoch_ == 0) notify([&](TrainerCallback& c) { c.on_epoch_begin(state_, control_); });
  notify([&](TrainerCallback& c) { c.on_step_begin(state_, control_); });
}

bool Trainer::end_of_epoch() {
  const TrainingArguments& a = plan_.arguments;
  if (steps_in_epoch_ < plan_.train_data->batches(epoch_)) return false;
  control_.should_log |= a.logging.strategy == "epoch";
  control_.should_evaluate |= a.evaluation.strategy == "epoch";
  control_.should_save |= a.saving.strategy == "epoch";
  steps_in_epoch_ = 0;
  ++epoch_;
  notify([&](TrainerCallback& c) { c.on_epoch_end(state_, control_); });
  return true;
}

// As far as this rank knows; the ranks agree in settle.
void Trainer::decide_what_follows() {
  const int64_t step = state_.global_step;
  control_.should_log = is_due(step, logging_steps_) || (step == 1 && plan_.arguments.logging.first_step);
  control_.should_evaluate = is_due(step, eval_steps_);
  control_.should_save = is_due(step, save_steps_);
  const bool is_any_due = control_.should_log || control_.should_evaluate || control_.should_save;
  settles_now_ = end_of_epoch() || is_any_due || step == plan_.max_steps || !parts_.validates_later;
  notify([&](TrainerCallback& c) { c.on_step_end(state_, control_); });
  settled_ = false;
  start_agreement();
}

// What one rank requests happens on all ranks, at the same step.
void Trainer::start_agreement() {
  if (stop_->requested()) stop_signal_ = stop_->signal();
  control_.should_training_stop |= stop_signal_ != 0;
  if (job_.world() == 1) return;
  wishes_ = at::tensor({int64_t{control_.should_training_stop}, int64_t{control_.should_log},
                        int64_t{control_.should_evaluate}, int64_t{control_.should_save}, int64_t{stop_signal_}},
                       at::TensorOptions().dtype(at::kLong))
                .to(job_.torch_device());
  ProcessGroup& group = parts_.validates_later ? job_.side_group() : job_.world_group();
  agreement_ = group.all_reduce(wishes_, ReduceOp::kMax);
  control_ = {};  // until all ranks have contributed theirs
}

void Trainer::finish_agreement() {
  if (job_.world() == 1) return;
  std::exchange(agreement_, {}).wait();
  const at::Tensor agreed = wishes_.to(at::kCPU);
  const int64_t* values = agreed.data_ptr<int64_t>();
  control_ = {values[0] != 0, values[1] != 0, values[2] != 0, values[3] != 0};
  stop_signal_ = static_cast<int>(values[4]);
}

// After callbacks in which any rank may have set its flags. Waits: for all ranks.
void Trainer::agree() {
  start_agreement();
  finish_agreement();
}

// The result of the latest step, and what follows it. Waits: for all ranks. Returns the same as settle_update.
bool Trainer::settle() {
  if (settled_) return false;
  const bool taken_back = settle_update();
  settled_ = true;
  finish_agreement();
  const bool is_last = state_.global_step == plan_.max_steps || control_.should_training_stop;
  if (is_last && plan_.arguments.logging.strategy != "no") control_.should_log = true;
  // As in HF: the last epoch ends with the run, wherever that is.
  if (state_.global_step == plan_.max_steps && plan_.arguments.evaluation.strategy == "epoch")
    control_.should_evaluate = true;
  return taken_back;
}

// In each of the three, a callback on one rank can request another of them, or the end.
void Trainer::do_what_follows() {
  if (std::exchange(control_.should_log, false)) {
    log();
    agree();
  }
  if (std::exchange(control_.should_evaluate, false)) {
    evaluate();
    agree();
  }
  if (std::exchange(control_.should_save, false)) {
    save_checkpoint();
    agree();
  }
}

void Trainer::log() {
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
  if (window_.steps > 1) report.extra.emplace_back("grad_norm_max", window_.largest_grad_norm);
  if (parts_.scaler) report.extra.emplace_back("loss_scale", last_.loss_scale);
  if (parts_.scaler || window_.skipped > 0) {
    report.extra.emplace_back("skipped_iter", static_cast<double>(window_.skipped));
  }
  if (plan_.arguments.optimizer.log_num_zeros_in_grad) {
    report.extra.emplace_back("num_zeros_in_grad", static_cast<double>(last_.zeros));
  }
  window_ = {};
  last_log_ = Clock::now();
  notify([&](TrainerCallback& c) { c.on_log(state_, report, control_); });
}

EvalLoopOutput Trainer::evaluate() {
  if (!plan_.eval_data) throw ConfigError("no evaluation data; give --eval_data");
  settle_update();
  check_step(state_.global_step);
  DataLoader& data = *plan_.eval_data;
  const Clock::time_point begin = Clock::now();
  const DataPosition start = data.position();
  LossTotals totals(job_);
  const bool is_complete = evaluate_batches(&totals);
  data.restore(start);
  if (!is_complete) return {};
  const auto [loss, tokens] = totals.mean_and_count();
  const double seconds = seconds_since(begin);
  const int64_t samples = data.samples();
  EvalLoopOutput output{.loss = loss, .num_samples = samples, .tokens = tokens, .metrics = {}};
  output.metrics = {{"eval_loss", loss},
                    {"eval_perplexity", std::exp(loss)},
                    {"eval_runtime", seconds},
                    {"eval_samples_per_second", static_cast<double>(samples) / seconds}};
  const EvalReport report{
      .step = state_.global_step, .epoch = state_.epoch, .loss = loss, .tokens = tokens, .seconds = seconds};
  notify([&](TrainerCallback& c) { c.on_evaluate(state_, report, control_); });
  last_log_ += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  return output;
}

// False after a signal: the ranks leave after the same batch.
bool Trainer::evaluate_batches(LossTotals* totals) {
  const LossRule rule{.per_token = true};
  DataLoader& data = *plan_.eval_data;
  StopAgreement agreement(job_, stop_);
  for (int64_t i = 0; i < data.batches(0); ++i) {
    if (agreement.is_reached()) return false;
    const std::vector<MicroBatch> host_batches = *next_micro_batches(data);
    const std::vector<MicroBatch> batches = to_device(host_batches, job_.torch_device());
    parts_.begin_evaluation(batches);
    parts_.forward_executor.run();
    const ModelStage& last = *parts_.stages.back();
    const at::Tensor losses = logged_losses(last, loss_weights(host_batches, rule), rule);
    totals->add(losses.sum(), last.is_last() ? parts_.counted_tokens(host_batches) : 0);
  }
  return true;
}

void Trainer::save_model(const std::filesystem::path& folder) {
  settle_update();
  check_step(state_.global_step);
  parts_.model.save_pretrained(folder,
                               {.source = plan_.arguments.model.path, .tokenizer_files = plan_.tokenizer_files});
}

bool Trainer::is_saved_already(const std::filesystem::path& folder) {
  if (!plan_.is_restarted) return false;
  const at::Tensor there =
      at::full({1}, int64_t{std::filesystem::exists(folder)}, at::TensorOptions(job_.torch_device()).dtype(at::kLong));
  job_.world_group().all_reduce(there, ReduceOp::kMax).wait();
  return there.item<int64_t>() != 0;
}

void Trainer::save_checkpoint() {
  const Clock::time_point begin = Clock::now();
  const std::filesystem::path output_dir = plan_.arguments.output.dir;
  const std::filesystem::path folder = checkpoint_folder(output_dir, state_.global_step);
  last_saved_ = state_.global_step;
  if (is_saved_already(folder)) return;
  save_model(folder);
  notify([&](TrainerCallback& c) { c.on_save(state_, folder.string(), control_); });
  if (job_.rank() == 0) keep_newest(output_dir, plan_.arguments.saving.total_limit);
  last_log_ += Clock::now() - begin;  // tokens per second count training time only
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
    result.reason = fmt::format("stopped after step {}", state_.global_step);
  }
  const double steps = static_cast<double>(state_.global_step);
  const double samples = steps * static_cast<double>(plan_.train_data->global_batch_size());
  result.metrics = {{"train_runtime", seconds},
                    {"train_samples_per_second", samples / seconds},
                    {"train_steps_per_second", steps / seconds},
                    {"train_loss", result.training_loss},
                    {"epoch", state_.epoch}};
  return result;
}

}  // namespace concord
