#include "trainer/checkpoint/checkpointer.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/config_error.h"
#include "core/checkpoint/optimizer_files.h"
#include "core/mesh/agreement.h"
#include "platform/loader/host.h"
#include "trainer/checkpoint/output_folder.h"
#include "trainer/checkpoint/resume.h"
#include "trainer/checkpoint/save_wait.h"
#include "trainer/health/health.h"
#include "trainer/metrics/step_log.h"
#include "trainer/run_context.h"

namespace concord {
namespace {

constexpr double kGiB = 1 << 30;

void warn(const std::string& message) { loader::log(CONCORD_LOG_WARN, "train", message); }

}  // namespace

Checkpointer::Checkpointer(RunContext& run, CheckpointerParts parts)
    : LoopPart(run),
      parts_(std::move(parts)),
      interval_(run.plan.arguments.saving.strategy, run.plan.arguments.saving.steps, run.plan.max_steps),
      memory_(run.plan, run.job) {
  // Every checkpoint contains the identity of the data. Computing it may take a second, which the first save would
  // keep the loop waiting for.
  const SavingArguments& saving = run.plan.arguments.saving;
  if (saving.strategy != IntervalStrategy::no && !saving.only_model) run.plan.train_data->identity();
}

void Checkpointer::request(bool ends_epoch) {
  run_.control.should_save = interval_.is_due(run_.state.global_step, ends_epoch);
}

void Checkpointer::agree_on(StepAgreement* agreement) {
  progress_ = save_ ? save_->progress() : SaveJob::Progress::through;
  memory_progress_ = memory_.progress();
  agreement->add(&progress_);
  agreement->add(&memory_progress_);
}

bool Checkpointer::advance() {
  if (memory_.advance(memory_progress_)) run_.heartbeat.saved(memory_.newest(), /*is_kept=*/false);
  if (!save_) return false;
  const StepClock::Span span(run_.clock, StepClock::Activity::saving);
  save_->advance(progress_);
  if (!save_->is_done()) return false;
  finish_save();
  return true;
}

bool Checkpointer::act() {
  const bool saves = std::exchange(run_.control.should_save, false);
  if (saves) save_checkpoint(run_.plan.arguments.saving.async ? SaveJob::Source::copy : SaveJob::Source::live);
  save_in_memory_checkpoint();
  return saves;
}

void Checkpointer::restore(const TrainingState& state) {
  const std::filesystem::path own = checkpoint_folder(run_.plan.arguments.output.dir, state.step);
  std::error_code ignored;
  if (std::filesystem::equivalent(own, run_.plan.resume_from, ignored)) last_saved_ = state.step;
}

void Checkpointer::finish() {
  memory_.abandon();
  complete_save();
  if (run_.plan.arguments.saving.strategy != IntervalStrategy::no) save_last_step();
  if (run_.plan.arguments.best_model.load_at_end) load_best_model();
}

void Checkpointer::save_model(const std::filesystem::path& folder) {
  run_.parts.model.save_pretrained(folder, model_options());
}

void Checkpointer::save_average(const std::filesystem::path& folder) {
  Optimizer& optimizer = run_.parts.optimizer;
  if (!optimizer.keeps_average()) throw ConfigError("no average of the weights is kept; give --ema_decay");
  optimizer.swap_ema_weights();
  save_model(folder);
  optimizer.swap_ema_weights();
}

// Saves the last step, unless a run was resumed at it.
void Checkpointer::save_last_step() {
  const TrainingPlan& plan = run_.plan;
  if (last_saved_ != run_.state.global_step) {
    save_checkpoint(SaveJob::Source::live);
    complete_save();
  } else if (run_.job.rank() == plan.writing_rank()) {
    rotate_checkpoints(plan.arguments.output.dir, plan.arguments.saving.total_limit, run_.state.best.checkpoint);
  }
}

// Starts to save a checkpoint, after the one that is still being written. A live one is complete on return.
void Checkpointer::save_checkpoint(SaveJob::Source source) {
  const bool is_live = source == SaveJob::Source::live;
  const PhaseScope phase(&run_.heartbeat, is_live ? RankPhase::writing : RankPhase::saving);
  const StepClock::Span span(run_.clock, StepClock::Activity::saving);
  const StepTimers::Span timer(run_.parts.timers, StepPart::save);
  const Clock::time_point begin = Clock::now();
  if (is_skipped()) return;
  const bool has_to_wait = save_ && !is_live;
  complete_save();
  if (has_to_wait) warn_of_wait(Clock::now() - begin);
  const std::filesystem::path folder = checkpoint_folder(run_.plan.arguments.output.dir, run_.state.global_step);
  if (is_in_the_way(folder)) return;
  parts_.health.check_replicas();
  parts_.best.saved(run_.state.global_step);
  run_.state.best = parts_.best.result();
  start_save(folder, source);
  if (is_live) complete_save();
  parts_.log.exclude_save(Clock::now() - begin);
}

// Returns whether the last save is still being written and this one is skipped for that (async_save_when_busy).
bool Checkpointer::is_skipped() {
  if (!save_ || run_.plan.arguments.saving.when_busy != WhenBusy::skip) return false;
  if (run_.job.rank() == 0) {
    warn(fmt::format("the checkpoint of step {} is skipped: that of step {} is still being written",
                     run_.state.global_step, last_saved_));
  }
  return true;
}

// Returns whether |folder| exists on a machine that writes it, and was not written by Concord. It is not touched.
bool Checkpointer::is_in_the_way(const std::filesystem::path& folder) {
  std::error_code ignored;
  const bool is_foreign = run_.job.rank() == run_.plan.writing_rank() && std::filesystem::exists(folder, ignored) &&
                          !std::filesystem::is_empty(folder, ignored) && !is_own_checkpoint(folder);
  if (is_foreign) {
    warn(fmt::format("the checkpoint of step {} is skipped: {} exists and was not written by Concord; move it away",
                     run_.state.global_step, folder.string()));
  }
  return all_reduce_scalar(run_.job, is_foreign ? 1 : 0, ReduceOp::kMax) != 0;
}

void Checkpointer::start_save(const std::filesystem::path& folder, SaveJob::Source source) {
  const int64_t step = run_.state.global_step;
  if (!run_.plan.arguments.saving.only_model && !std::filesystem::exists(folder)) {
    run_.heartbeat.begins_to_write(step, std::filesystem::absolute(folder).string());
  }
  save_start_ = Clock::now();
  save_ = run_.parts.model.start_save(folder, checkpoint_options(), source, save_plan_);
  save_plan_ = save_->plan();
  last_saved_ = step;
  last_saved_updates_ = run_.parts.optimizer.steps();
}

// Saves a checkpoint in memory if one is due. Not while one is written to the disk: a restart then goes back to before
// that save and repeats it, so that no checkpoint is missing afterwards.
void Checkpointer::save_in_memory_checkpoint() {
  if (save_ || !memory_.is_due(run_.state.global_step)) return;
  parts_.health.check_replicas();
  const PhaseScope phase(&run_.heartbeat, RankPhase::saving);
  const StepClock::Span span(run_.clock, StepClock::Activity::saving);
  const Clock::time_point begin = Clock::now();
  HfSaveOptions options{.manifest = true};
  add_callback_files(&options);
  add_state(&options);
  memory_.start(run_.parts.model, run_.state.global_step, std::move(options));
  parts_.log.exclude(Clock::now() - begin);
}

// Waits: until the checkpoint that is being written is complete.
void Checkpointer::complete_save() {
  if (!save_) return;
  const PhaseScope phase(&run_.heartbeat, RankPhase::writing);
  save_->wait();
  finish_save();
}

void Checkpointer::finish_save() {
  const std::string folder = save_->folder();
  digest_ = save_->digest();
  save_.reset();
  run_.heartbeat.saved(last_saved_, /*is_kept=*/!run_.plan.arguments.saving.only_model);
  run_.notify([&](TrainerCallback& c) { c.on_save(run_.state, folder, run_.control); });
}

// Warns, only once, that a save waited for the one before it.
void Checkpointer::warn_of_wait(Clock::duration waited) {
  const auto in_seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  const SaveWait wait{.previous = last_saved_,
                      .step = run_.state.global_step,
                      .seconds = in_seconds(Clock::now() - save_start_),
                      .waited = in_seconds(waited)};
  if (has_warned_of_wait_ || run_.job.rank() != 0 || !wait.is_noticeable()) return;
  has_warned_of_wait_ = true;
  warn(to_string(wait));
}

HfSaveOptions Checkpointer::model_options() const {
  const TrainingPlan& plan = run_.plan;
  return {.source = plan.arguments.model.path,
          .tokenizer_files = plan.tokenizer_files,
          .overwrite = plan.is_restarted || plan.continues(),
          .writers = plan.writers};
}

HfSaveOptions Checkpointer::checkpoint_options() {
  const TrainingArguments& a = run_.plan.arguments;
  HfSaveOptions options = model_options();
  options.manifest = true;
  options.memory_limit = static_cast<int64_t>(a.saving.memory_limit * kGiB);
  // In the background, since it may take a while to remove a checkpoint.
  options.after_publish = [output_dir = a.output.dir, limit = a.saving.total_limit, best = run_.state.best.checkpoint] {
    rotate_checkpoints(output_dir, limit, best);
  };
  add_callback_files(&options);
  if (a.saving.only_model) return options;
  add_state(&options);
  const bool has_changed = run_.parts.optimizer.steps() != last_saved_updates_ && run_.last_step.learning_rate > 0;
  if (has_changed) options.stale_digest = digest_;
  return options;
}

void Checkpointer::add_callback_files(HfSaveOptions* options) {
  run_.notify([&](TrainerCallback& c) {
    for (auto& file : c.checkpoint_files(run_.state)) options->more_files.push_back(std::move(file));
  });
}

// Adds all that a run needs in addition to the weights in order to resume.
void Checkpointer::add_state(HfSaveOptions* options) {
  options->more.push_back(
      saved_tensors(run_.parts.optimizer.state_tensors(), run_.parts.optimizer.saved_state(options->writers)));
  if (std::optional<SavedTensors> fp8 = run_.parts.model.saved_fp8(options->writers)) {
    options->more.push_back(std::move(*fp8));
  }
  options->more_files.emplace_back(kMetadataFile, to_json(parts_.state()));
}

// Loads the weights of the best checkpoint, which is complete, and their EMA, after the last step.
void Checkpointer::load_best_model() {
  const std::string& folder = run_.state.best.checkpoint;
  if (folder.empty()) {
    if (run_.job.rank() != 0) return;
    warn("load_best_model_at_end: no step was both evaluated and saved; the final model is that of the last step");
    return;
  }
  TrainingParts& parts = run_.parts;
  parts.data_parallel.finish_param_gather();
  const bool shares_reads = reads_together(run_.plan.arguments, folder, run_.job);
  parts.model.load_saved(folder, shares_reads);
  parts.optimizer.reload_main_weights();
  if (parts.optimizer.keeps_average()) {
    parts.optimizer.load_average(OptimizerFiles(folder, parts.optimizer.steps()), shares_reads);
  }
}

}  // namespace concord
