// Trains a model: the loop, evaluation, saving, callbacks. It contains no maths, only the order of things.
//
// Example, given const TrainingArguments& arguments, int64_t rank, int64_t world:
//   #include "core/mesh/initialize.h"
//   TrainingPlan plan = plan_training(arguments, rank, world);
//   ParallelContext& job = initialize(initialize_args(plan));
//   Trainer trainer(std::move(plan), job);
//   TrainOutput output = trainer.train();
//   trainer.save_model("model");
//
// Names and results are those of HF's Trainer. Every rank of the job has one and makes the same calls. Errors: those of
// the parts; a loss or gradient that is not finite is an Error with the step, or with fp16 and without
// check_for_nan_in_loss_and_grad a step without an update. Threads: always the same one.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/heartbeat.h"
#include "core/data_parallel/replica_check.h"
#include "trainer/build.h"
#include "trainer/callbacks.h"
#include "trainer/checkpoint/best_model.h"
#include "trainer/checkpoint/in_memory_checkpoints.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/generation/prompt_samples.h"
#include "trainer/health/step_validator.h"
#include "trainer/health/stragglers.h"
#include "trainer/metrics/log_window.h"
#include "trainer/metrics/loss_log.h"
#include "trainer/metrics/router_log.h"
#include "trainer/metrics/step_clock.h"
#include "trainer/metrics/step_profile.h"
#include "trainer/metrics/token_log.h"
#include "trainer/train_step.h"

namespace concord {

class StopRequest;

struct TrainOutput {
  int64_t global_step = 0;
  double training_loss = 0;  // mean over the steps
  NamedValues metrics;       // train_runtime, train_samples_per_second, train_steps_per_second, train_loss, epoch
  NamedValues test_metrics;  // test_loss, ... of a run that has test data and was finished
  std::string reason;        // "finished", or what ended it before
  int stop_signal = 0;       // that came to any rank; of a run that was finished all the same, only from run_training
};

struct EvalLoopOutput {
  double loss = 0;  // mean over all counted tokens, or pairs
  int64_t num_samples = 0;
  int64_t tokens = 0;
  double accuracy = 0;  // with compute_accuracy: the share of counted tokens that the model ranks first
  // eval_loss, eval_perplexity, eval_accuracy, eval_runtime, eval_samples_per_second; of several sets also
  // eval_NAME_loss, eval_NAME_perplexity and eval_NAME_accuracy of each, where eval_loss is over the tokens of all of
  // them; what compute_metrics returns. Of pairs no perplexity, but eval_rewards/chosen and so on.
  NamedValues metrics;
};

class Trainer {
 public:
  Trainer(TrainingPlan plan, ParallelContext& job, const Providers& providers = {});
  ~Trainer();

  void add_callback(std::shared_ptr<TrainerCallback> callback) { callbacks_.push_back(std::move(callback)); }

  // Until max_steps, the end of the data, a callback's request or SIGTERM. With load_best_model_at_end the model is the
  // best checkpoint's afterwards. Call once.
  TrainOutput train();
  // Forward only, over all of the evaluation data; in train() a signal that asks for the end abandons it, and then
  // nothing is reported of it. Throws ConfigError where there is none.
  EvalLoopOutput evaluate();
  // The same over the test data, without a report; metrics are test_loss and so on. With do_predict it leaves
  // predictions.jsonl in output_dir. Throws ConfigError where there is none.
  EvalLoopOutput test();
  // An HF folder, which must not be there yet unless this run was resumed: then it is replaced. Waits: for all ranks.
  void save_model(const std::filesystem::path& folder);
  // The same of the average that ema_decay keeps. Throws ConfigError where there is none.
  void save_average(const std::filesystem::path& folder);

  const TrainerState& state() const { return state_; }
  const TrainingPlan& plan() const { return plan_; }
  ParallelContext& job() { return job_; }
  VirtualModels& model() { return parts_.model; }

 private:
  using Clock = std::chrono::steady_clock;

  void save_last_step();
  std::optional<std::vector<MicroBatch>> next_batches();
  void begin_step();
  std::string exit_reason() const;
  void record(const StepOutput& step);
  void update_control();
  void end_epoch();
  void agree();
  void apply_control();
  void check_replicas();
  void log();
  void detect_stragglers(StepReport* report);
  void replace_this_rank(const Straggler& straggler);
  void save_checkpoint(SaveJob::Source source);
  bool is_in_the_way(const std::filesystem::path& folder);
  HfSaveOptions checkpoint_options();
  void add_state(HfSaveOptions* options);
  void remember();
  void advance_save();
  void complete_save();
  void note_save_wait(Clock::duration waited);
  void finish_save();
  void load_best_model();
  TrainingState training_state();
  void restore(const TrainingState& state);
  EvalLoopOutput evaluate_weights();
  NamedValues non_loss_metrics();
  struct EvalTotals;
  EvalLoopOutput evaluate_set(DataLoader& data, const std::string& name, ObjectiveLog* objective, NamedValues* extra);
  bool evaluate_batches(DataLoader& data, EvalTotals* totals);
  TrainOutput output(double seconds);
  HfSaveOptions save_options() const;
  template <class Call>
  void notify(Call call);

  TrainingPlan plan_;
  ParallelContext& job_;
  TrainingParts parts_;
  ReplicaCheck replicas_;
  ComputeMetrics compute_metrics_;  // empty: none
  ProcessNonLossData process_non_loss_data_;
  NonLossData non_loss_data_;
  std::unique_ptr<StepCheck> step_check_;
  LossLog losses_;
  RouterLog routers_;
  ObjectiveLog objective_;
  MtpLossLog further_;
  PromptSamples samples_;
  BestModel best_;
  TrainerState state_;
  TrainerControl control_;
  StepOutput last_;                    // the newest step
  const StopRequest* stop_ = nullptr;  // in train() only
  int stop_signal_ = 0;                // as the ranks agree
  Clock::time_point begin_;            // of train()
  std::string exit_reason_;            // the argument that ended the run, on this rank
  std::vector<std::shared_ptr<TrainerCallback>> callbacks_;
  int64_t epoch_ = 0;           // the number of the one that runs
  int64_t steps_in_epoch_ = 0;  // done
  int64_t logging_steps_;
  int64_t eval_steps_;
  int64_t save_steps_;
  int64_t replicas_checked_ = -1;                                 // after this step
  std::unique_ptr<SaveJob> save_;                                 // the checkpoint that is being written
  Clock::time_point save_begin_;                                  // when that save began
  bool has_noted_wait_ = false;                                   // said once that a save waited for the one before it
  std::shared_ptr<const GlobalSavePlan> save_plan_;               // of all checkpoints
  SaveJob::Progress save_progress_ = SaveJob::Progress::through;  // of all ranks, as they agree
  InMemoryCheckpoints memory_;
  SaveJob::Progress memory_progress_ = SaveJob::Progress::through;  // of all ranks, as they agree
  Heartbeat pulse_;
  int64_t last_saved_ = 0;          // step of the newest checkpoint, also while it is being written
  int64_t last_saved_updates_ = 0;  // of the optimizer until then
  std::optional<uint32_t> digest_;  // of the newest complete checkpoint of this run, on rank 0
  int64_t first_step_ = 0;          // done before train(), by the run that is resumed
  int64_t first_sample_ = 0;        // the same
  LogWindow window_;                // since the last log line
  Clock::time_point last_log_;
  StepProfile profile_;
  StepClock clock_;  // what the steps of this rank spend their time on
  StragglerAction straggler_action_;
  StragglerWatch stragglers_;
};

}  // namespace concord
