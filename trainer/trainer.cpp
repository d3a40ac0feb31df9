#include "trainer/trainer.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <cmath>

#include "core/config_error.h"
#include "core/data_parallel/finalize_grads.h"
#include "platform/loader/error.h"
#include "trainer/data/to_micro_batch.h"
#include "trainer/device_batch.h"
#include "trainer/loss_check.h"
#include "trainer/output_folder.h"
#include "trainer/stop_request.h"

namespace concord {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// How often something happens: every so many steps, or never (0) where its strategy is another.
int64_t interval(const std::string& strategy, double steps, int64_t max_steps) {
  return strategy == "steps" ? steps_of(steps, max_steps) : 0;
}

bool is_due(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

}  // namespace

Trainer::Trainer(TrainingPlan plan, ParallelContext& job, const Providers& providers)
    : plan_(std::move(plan)),
      job_(job),
      parts_(plan_, job, providers),
      losses_(job, plan_.arguments.logging_nan_inf_filter) {
  const TrainingArguments& a = plan_.arguments;
  // With fp16 a loss that is no number is a step to be skipped, as its gradients say.
  checks_loss_ = a.check_for_nan_in_loss_and_grad && !a.fp16;
  logging_steps_ = interval(a.logging_strategy, a.logging_steps, plan_.max_steps);
  eval_steps_ = interval(a.eval_strategy, a.eval_steps > 0 ? a.eval_steps : a.logging_steps, plan_.max_steps);
  save_steps_ = interval(a.save_strategy, a.save_steps, plan_.max_steps);
  state_.max_steps = plan_.max_steps;
  state_.num_train_epochs =
      a.max_steps > 0 ? std::ceil(static_cast<double>(a.max_steps) / static_cast<double>(plan_.train_data->batches(0)))
                      : a.num_train_epochs;
  state_.is_world_process_zero = job.rank() == 0;
}

Trainer::~Trainer() = default;

template <class Call>
void Trainer::notify(Call call) {
  for (const auto& callback : callbacks_) call(*callback);
}

TrainOutput Trainer::train() {
  const StopRequest stop;
  const Clock::time_point begin = last_log_ = Clock::now();
  notify([&](TrainerCallback& c) { c.on_train_begin(plan_.arguments, state_, control_); });
  while (state_.global_step < plan_.max_steps && !control_.should_training_stop && next_step(stop)) {
  }
  if (plan_.arguments.save_strategy != "no" && last_saved_ != state_.global_step) save_checkpoint();
  return output(seconds_since(begin), stop);
}

// False where the data has come to its end.
bool Trainer::next_step(const StopRequest& stop) {
  std::optional<std::vector<MicroBatch>> batches = next_micro_batches(*plan_.train_data);
  if (!batches) return false;
  if (steps_in_epoch_ == 0) begin_epoch();
  notify([&](TrainerCallback& c) { c.on_step_begin(state_, control_); });
  const StepOutput step = train_step(*batches);
  remember(step, *batches);
  decide_what_follows(stop);
  if (control_.should_log) log(step);
  if (control_.should_evaluate) evaluate();
  if (control_.should_save) save_checkpoint();
  return true;
}

StepOutput Trainer::train_step(const std::vector<MicroBatch>& host_batches) try {
  StepOutput step;
  step.learning_rate = parts_.lr.lr();
  step.loss_scale = parts_.loss_scale();
  const std::vector<double> weights = loss_weights(host_batches, parts_.loss_rule);
  const std::vector<MicroBatch> batches = to_device(host_batches, job_.torch_device());
  parts_.data_parallel.begin_step(static_cast<int64_t>(batches.size()));
  parts_.begin(batches, weights);
  parts_.executor.run();  // forward and backward of every micro-batch
  const at::Tensor losses = logged_losses(*parts_.stages.back(), weights, parts_.loss_rule);
  step.loss = losses.sum();
  std::optional<LossCheck> check;
  if (checks_loss_) check.emplace(losses, job_);
  step.counted = finalize_grads(parts_.data_parallel, {.tokens = parts_.counted_tokens(host_batches)});
  const StepResult update = parts_.optimizer.step(
      {.lr = step.learning_rate, .weight_decay = parts_.lr.weight_decay(), .loss_scale = step.loss_scale});
  if (check) check->require_finite(state_.global_step + 1);
  if (parts_.scaler) parts_.scaler->update(!update.updated);
  if (update.updated) parts_.lr.step();
  step.updated = update.updated;
  step.grad_norm = update.grad_norm;
  step.zeros = update.zeros;
  return step;
} catch (const Error&) {
  if (checks_loss_) blame_the_loss();
  throw;
}

// A loss that is no number makes gradients that are none, and these are found first. Throws where it was the loss.
void Trainer::blame_the_loss() const {
  try {
    require_finite_losses(parts_.stages.back()->token_losses(), state_.global_step + 1, job_);
  } catch (const c10::Error&) {
  }  // the device itself does not work any more; what it said first is the better report
}

void Trainer::remember(const StepOutput& step, const std::vector<MicroBatch>& batches) {
  if (!step.updated && !parts_.scaler) {
    throw Error(
        CONCORD_STATUS_INTERNAL,
        fmt::format("the gradient of step {} is no number (norm {}); a lower learning_rate or a max_grad_norm may "
                    "help, and `concord probe` shows where in the model it begins",
                    state_.global_step + 1, step.grad_norm));
  }
  losses_.add(step.loss, step.counted);
  ++state_.global_step;
  ++steps_in_epoch_;
  int64_t tokens = 0;
  for (const MicroBatch& batch : batches) tokens += batch.input_ids.numel();
  tokens *= job_.layout().dp();
  state_.tokens += tokens;
  tokens_since_log_ += tokens;
  state_.epoch = static_cast<double>(epoch_) +
                 static_cast<double>(steps_in_epoch_) / static_cast<double>(plan_.train_data->batches(epoch_));
}

void Trainer::begin_epoch() {
  notify([&](TrainerCallback& c) { c.on_epoch_begin(state_, control_); });
}

void Trainer::end_of_epoch() {
  const TrainingArguments& a = plan_.arguments;
  if (steps_in_epoch_ < plan_.train_data->batches(epoch_)) return;
  control_.should_log |= a.logging_strategy == "epoch";
  control_.should_evaluate |= a.eval_strategy == "epoch";
  control_.should_save |= a.save_strategy == "epoch";
  steps_in_epoch_ = 0;
  ++epoch_;
  notify([&](TrainerCallback& c) { c.on_epoch_end(state_, control_); });
}

void Trainer::decide_what_follows(const StopRequest& stop) {
  const int64_t step = state_.global_step;
  control_.should_log = is_due(step, logging_steps_) || (step == 1 && plan_.arguments.logging_first_step);
  control_.should_evaluate = is_due(step, eval_steps_);
  control_.should_save = is_due(step, save_steps_);
  end_of_epoch();
  notify([&](TrainerCallback& c) { c.on_step_end(state_, control_); });
  control_.should_training_stop |= stop.requested();
  agree();
  const bool is_last = step == plan_.max_steps || control_.should_training_stop;
  if (is_last && plan_.arguments.logging_strategy != "no") control_.should_log = true;
}

// What one rank wants happens on all, at the same step.
void Trainer::agree() {
  if (job_.world() == 1) return;
  const at::Tensor flags = at::tensor({int64_t{control_.should_training_stop}, int64_t{control_.should_log},
                                       int64_t{control_.should_evaluate}, int64_t{control_.should_save}},
                                      at::TensorOptions().dtype(at::kLong))
                               .to(job_.torch_device());
  job_.world_group().all_reduce(flags, ReduceOp::kMax).wait();
  const at::Tensor agreed = flags.to(at::kCPU);
  const int64_t* values = agreed.data_ptr<int64_t>();
  control_ = {values[0] != 0, values[1] != 0, values[2] != 0, values[3] != 0};
}

void Trainer::log(const StepOutput& step) {
  StepReport report;
  report.loss = losses_.take_mean();
  report.step = state_.global_step;
  report.epoch = state_.epoch;
  report.learning_rate = step.learning_rate;
  report.grad_norm = step.grad_norm;
  report.tokens = tokens_since_log_;
  report.seconds = seconds_since(last_log_);
  report.memory_bytes = memory_in_use(job_);
  if (parts_.scaler) {
    report.extra = {{"loss_scale", step.loss_scale}, {"skipped_iter", step.updated ? 0.0 : 1.0}};
  }
  if (plan_.arguments.log_num_zeros_in_grad) {
    report.extra.emplace_back("num_zeros_in_grad", static_cast<double>(step.zeros));
  }
  tokens_since_log_ = 0;
  last_log_ = Clock::now();
  notify([&](TrainerCallback& c) { c.on_log(state_, report, control_); });
}

EvalLoopOutput Trainer::evaluate() {
  if (!plan_.eval_data) throw ConfigError("there is no eval_data to evaluate on; give --eval_data");
  DataLoader& data = *plan_.eval_data;
  const Clock::time_point begin = Clock::now();
  const DataPosition start = data.position();
  const LossRule rule{.per_token = true};
  LossTotals totals(job_);
  for (int64_t i = 0; i < data.batches(0); ++i) {
    const std::vector<MicroBatch> host_batches = *next_micro_batches(data);
    const std::vector<MicroBatch> batches = to_device(host_batches, job_.torch_device());
    parts_.begin_evaluation(batches);
    parts_.forward_executor.run();
    const ModelStage& last = *parts_.stages.back();
    const at::Tensor losses = logged_losses(last, loss_weights(host_batches, rule), rule);
    totals.add(losses.sum(), last.is_last() ? parts_.counted_tokens(host_batches) : 0);
  }
  data.restore(start);
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

void Trainer::save_model(const std::filesystem::path& folder) {
  parts_.model.save_pretrained(folder, {.source = plan_.arguments.model});
}

void Trainer::save_checkpoint() {
  const Clock::time_point begin = Clock::now();
  const std::filesystem::path output_dir = plan_.arguments.output_dir;
  const std::filesystem::path folder = checkpoint_folder(output_dir, state_.global_step);
  save_model(folder);
  last_saved_ = state_.global_step;
  notify([&](TrainerCallback& c) { c.on_save(state_, folder.string(), control_); });
  if (job_.rank() == 0) keep_newest(output_dir, plan_.arguments.save_total_limit);
  last_log_ += Clock::now() - begin;  // tokens per second are of training
}

TrainOutput Trainer::output(double seconds, const StopRequest& stop) {
  losses_.take_mean();
  TrainOutput result;
  result.global_step = state_.global_step;
  result.training_loss = losses_.mean_so_far();
  result.reason = stop.requested() ? fmt::format("stopped by {} after step {}", stop.signal_name(), state_.global_step)
                  : state_.global_step < plan_.max_steps ? fmt::format("stopped after step {}", state_.global_step)
                                                         : "finished";
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
