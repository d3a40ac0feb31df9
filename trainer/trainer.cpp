#include "trainer/trainer.h"

#include <fmt/core.h>

#include <utility>

#include "core/checkpoint/optimizer_files.h"
#include "platform/loader/host.h"
#include "trainer/checkpoint/resume.h"
#include "trainer/checkpoint/resume_check.h"
#include "trainer/data/to_micro_batch.h"
#include "trainer/stop_request.h"

namespace concord {

Trainer::Trainer(TrainingPlan plan, ParallelContext& job, const Providers& providers)
    : plan_(std::move(plan)),
      job_(job),
      parts_(plan_, job, providers),
      run_(plan_, job, parts_),
      health_(run_),
      log_(run_, health_),
      evaluator_(run_, providers, log_),
      checkpointer_(run_, {health_, log_, evaluator_.best(), [this] { return training_state(); }}),
      exit_(run_),
      replica_speeds_(run_),
      profile_(plan_.arguments, job.rank(), job.world(), parts_.timers,
               {job.platform().extension<concord_activity_table>(), [&job] { job.device().synchronize(); },
                job.platform().extension<concord_profiler_table>()}) {
  if (plan_.continues()) restore(read_training_state(plan_.resume_from));
}

Trainer::~Trainer() = default;

TrainOutput Trainer::train() {
  begin();
  while (step()) {
  }
  return end();
}

void Trainer::begin() {
  stop_ = std::make_unique<StopRequest>(StopRequest::Phase::running, plan_.arguments.saving.exit_signal_grace);
  run_.stop = stop_.get();
  start();
  stop_->enter(StopRequest::Phase::running);  // every rank has been ready
}

bool Trainer::step() {
  if (run_.state.global_step >= plan_.max_steps || run_.control.should_training_stop) return false;
  const int64_t done = run_.state.global_step, number = done + 1;
  profile_.begin_step(done);
  const int64_t rows = plan_.train_data->batch_rows();
  const std::optional<std::vector<MicroBatch>> batches = next_batches();
  if (!batches) return false;  // the data has ended
  begin_step();
  record(plan_.skipped_steps.contains(number)
             ? skipped_step(parts_)
             : train_step(parts_, job_, {*batches, rows}, number, health_.step_check()));
  profile_.end_step(done);
  update_control();
  all_reduce_control();
  apply_control();
  run_.heartbeat.step_done(number);
  return true;
}

void Trainer::save_checkpoint() {
  run_.control.should_save = true;
  if (checkpointer_.act()) all_reduce_control();
}

TrainOutput Trainer::end() {
  run_.heartbeat.enter(RankPhase::ending);
  profile_.finish();
  checkpointer_.finish();
  TrainOutput result = output();
  if (plan_.test_data && run_.state.global_step >= plan_.max_steps) result.test_metrics = test().metrics;
  run_.stop = nullptr;
  stop_.reset();
  return result;
}

void Trainer::start() {
  exit_.start();
  log_.start();
  start_ = {.step = run_.state.global_step, .sample = plan_.train_data->position().consumed};
  run_.notify([&](TrainerCallback& c) { c.on_train_begin(plan_.arguments, run_.state, run_.control); });
  all_reduce_control();
  parts_.precompute_reference(plan_);
  if (plan_.arguments.evaluation.on_start && run_.state.global_step == 0) {  // as in HF, not one of the best
    evaluate();
    all_reduce_control();
  }
  run_.heartbeat.enter(RankPhase::training);
  run_.clock.restart();
}

std::optional<std::vector<MicroBatch>> Trainer::next_batches() {
  const StepClock::Span span(run_.clock, StepClock::Activity::data);
  const StepTimers::Span timer(parts_.timers, StepPart::data);
  auto batches = next_micro_batches(*plan_.train_data);
  for (size_t i = 0; batches && i < batches->size(); ++i) {
    MicroBatch& batch = (*batches)[i];
    batch.draws = {run_.state.global_step + 1, plan_.train_data->numbers()[i] * batch.input_ids.size(0)};
  }
  return batches;
}

void Trainer::begin_step() {
  if (epoch_.steps == 0) run_.notify([&](TrainerCallback& c) { c.on_epoch_begin(run_.state, run_.control); });
  run_.notify([&](TrainerCallback& c) { c.on_step_begin(run_.state, run_.control); });
}

void Trainer::record(const StepOutput& step) {
  run_.last_step = step;
  log_.add(step);
  ++run_.state.global_step;
  ++epoch_.steps;
  run_.state.tokens += plan_.train_data->contents().tokens;
  run_.state.epoch = plan_.train_data->epochs();
  parts_.timers.end_step();
  run_.clock.end_step(run_.state.global_step);
}

// Sets the requests of this rank, by its arguments and callbacks.
void Trainer::update_control() {
  const bool ends_epoch = plan_.train_data->epoch() > epoch_.number;
  for (LoopPart* part : loop_parts_) part->request(ends_epoch);
  if (ends_epoch) {
    epoch_ = {.number = epoch_.number + 1, .steps = 0};
    run_.notify([&](TrainerCallback& c) { c.on_epoch_end(run_.state, run_.control); });
  }
  run_.notify([&](TrainerCallback& c) { c.on_step_end(run_.state, run_.control); });
}

// Makes the requests of any rank, by its callbacks or a signal, those of all ranks. Waits: for all ranks.
void Trainer::all_reduce_control() {
  StepAgreement agreement;
  for (LoopPart* part : loop_parts_) part->agree_on(&agreement);
  agreement.add(&run_.control.should_training_stop);
  agreement.add(&run_.control.should_log);
  agreement.add(&run_.control.should_evaluate);
  agreement.add(&run_.control.should_save);
  agreement.add(&run_.control.should_show_progress);
  agreement.all_reduce(job_);
}

// In each part a callback on one rank can request that a later part acts, or the end of the run.
void Trainer::apply_control() {
  for (LoopPart* part : loop_parts_) {
    if (part->advance()) all_reduce_control();
  }
  for (LoopPart* part : loop_parts_) {
    if (part->act()) all_reduce_control();
  }
}

// Collects everything but tensors that the next step and the next log line depend on. Waits: for all ranks.
TrainingState Trainer::training_state() {
  TrainingState state;
  state.step = run_.state.global_step;
  state.tokens = run_.state.tokens;
  state.epoch = epoch_.number;
  state.steps_in_epoch = epoch_.steps;
  state.data = plan_.train_data->position();
  describe_run(plan_, &state);
  state.optimizer_steps = parts_.optimizer.steps();
  state.lr_counter = parts_.lr.counter();
  if (parts_.scaler) state.loss_scaler = parts_.scaler->state();
  state.layout = saved_layout(plan_, job_);
  state.rng = all_generators(job_);
  for (LoopPart* part : loop_parts_) part->save(&state);
  return state;
}

void Trainer::restore(const TrainingState& state) {
  const ResumeParts& taken = plan_.resume_parts;
  check_resumable(plan_.resume_from, state, plan_, taken);
  if (taken.optimizer) {
    const OptimizerFiles files(plan_.resume_from, state.optimizer_steps);
    const std::string converted = files.conversions(parts_.optimizer.state_tensors());
    if (!converted.empty() && job_.rank() == 0) {
      loader::log(CONCORD_LOG_WARN, "train", fmt::format("optimizer state is converted: {}", converted));
    }
    parts_.optimizer.load_state(files, reads_together(plan_.arguments, plan_.resume_from, job_));
    parts_.lr.set_counter(continued_lr_counter(state, parts_.lr.settings()));
    parts_.model.load_fp8(plan_.resume_from);
    if (parts_.scaler && state.loss_scaler) parts_.scaler->set_state(*state.loss_scaler);
  }
  if (taken.rng) restore_generators(state, plan_, job_);
  if (taken.data) {
    plan_.train_data->restore(state.data);
    epoch_ = {.number = state.epoch, .steps = state.steps_in_epoch};
  }
  run_.state.global_step = state.step;
  run_.state.tokens = state.tokens;
  run_.state.epoch = plan_.train_data->epochs();
  for (LoopPart* part : loop_parts_) part->restore(state);
}

TrainOutput Trainer::output() {
  const double seconds = exit_.seconds();
  TrainOutput result;
  result.global_step = run_.state.global_step;
  result.unlogged = log_.recent_steps();
  result.training_loss = log_.mean_loss();
  result.reason = exit_.reason();
  if (result.global_step < plan_.max_steps) result.stop_signal = exit_.signal();
  const auto steps = static_cast<double>(run_.state.global_step - start_.step);
  const auto samples = static_cast<double>(plan_.train_data->position().consumed - start_.sample);
  result.metrics = {{"train_runtime", seconds},
                    {"train_samples_per_second", samples / seconds},
                    {"train_steps_per_second", steps / seconds},
                    {"train_loss", result.training_loss},
                    {"epoch", run_.state.epoch}};
  return result;
}

}  // namespace concord
