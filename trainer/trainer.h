// Trains a model: load a batch, compute a step, agree on what follows, notify the callbacks.
//
// Example, given const TrainingArguments& arguments, int64_t rank, int64_t world:
//   #include "core/mesh/initialize.h"
//   TrainingPlan plan = plan_training(arguments, rank, world);
//   ParallelContext& job = initialize(initialize_args(plan));
//   Trainer trainer(std::move(plan), job);
//   TrainOutput output = trainer.train();
//   trainer.save_model("model");
//
// Names and results are those of HF's Trainer. Every rank of the job creates one and makes the same calls. Log lines,
// evaluations, checkpoints and the checks of ranks belong to the parts of the loop (trainer/loop_part.h), which also
// own the state that this takes. Errors: those of the parts; a loss or gradient that is not finite throws Error with
// the step, unless check_for_nan_in_loss_and_grad is off with fp16: then the step has no update. Threads: training
// thread only.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpointer.h"
#include "trainer/evaluation/evaluator.h"
#include "trainer/exit_conditions.h"
#include "trainer/health/health.h"
#include "trainer/metrics/replica_speeds.h"
#include "trainer/metrics/step_log.h"
#include "trainer/metrics/step_profile.h"
#include "trainer/run_context.h"

namespace concord {

struct TrainOutput {
  int64_t global_step = 0;
  double training_loss = 0;  // mean over the steps
  RecentSteps unlogged;      // steps after the last log line
  NamedValues metrics;       // train_runtime, train_samples_per_second, train_steps_per_second, train_loss, epoch
  NamedValues test_metrics;  // test_loss etc., if the run is finished and has test data
  std::string reason;        // "finished", or the cause of an earlier end
  int stop_signal = 0;       // received by any rank; if the run is finished, only run_training sets it
};

class Trainer {
 public:
  // |job| must outlive the trainer. Throws ConfigError if the plan resumes a checkpoint of a different run. Waits: for
  // all ranks.
  Trainer(TrainingPlan plan, ParallelContext& job, const Providers& providers = {});
  ~Trainer();

  void add_callback(std::shared_ptr<TrainerCallback> callback) { run_.callbacks.push_back(std::move(callback)); }

  // Trains until max_steps, the end of the data, a request of a callback, or SIGTERM. With load_best_model_at_end the
  // model is that of the best checkpoint afterwards. Call only once.
  TrainOutput train();
  // train() in parts, for a caller with another loop: begin(), step() until it returns false, end(). Every rank makes
  // the same calls. step() computes a step, and logs, evaluates and saves what is due after it; it returns false,
  // without a step, if the run is over. The caller may stop early. Stop signals are handled from begin() to end().
  void begin();
  bool step();
  TrainOutput end();
  // Saves a checkpoint of the last step, unless it has one. Call between steps. Waits: for all ranks.
  void save_checkpoint();
  // Runs forward over all evaluation data and calls on_evaluate. In train() a stop signal ends it; then nothing is
  // reported. Throws ConfigError if there is no evaluation data.
  EvalLoopOutput evaluate() { return evaluator_.evaluate(); }
  // Like evaluate(), but over the test data and without callbacks; metrics are test_loss etc. With do_predict writes
  // predictions.jsonl to output_dir.
  EvalLoopOutput test() { return evaluator_.test(); }
  // Saves the model as an HF folder, which must not exist unless the run was resumed; then it is replaced. Waits: for
  // all ranks.
  void save_model(const std::filesystem::path& folder) { checkpointer_.save_model(folder); }
  // Like save_model, but saves the EMA of the weights. Throws ConfigError without ema_decay.
  void save_average(const std::filesystem::path& folder) { checkpointer_.save_average(folder); }

  const TrainerState& state() const { return run_.state; }
  const TrainingPlan& plan() const { return plan_; }
  ParallelContext& job() { return job_; }
  VirtualModels& model() { return parts_.model; }

 private:
  void start();
  std::optional<std::vector<MicroBatch>> next_batches();
  void begin_step();
  void record(const StepOutput& step);
  void update_control();
  void all_reduce_control();
  void apply_control();
  TrainOutput output();
  TrainingState training_state();
  void restore(const TrainingState& state);

  // Constant after construction.
  TrainingPlan plan_;
  ParallelContext& job_;
  TrainingParts parts_;

  // Shared with the parts of the loop.
  RunContext run_;

  // The parts of the loop, which own their state.
  Health health_;
  StepLog log_;
  Evaluator evaluator_;
  Checkpointer checkpointer_;
  ExitConditions exit_;
  ReplicaSpeeds replica_speeds_;
  std::array<LoopPart*, 6> loop_parts_{&health_,       &log_,  &evaluator_,  // in order of action
                                       &checkpointer_, &exit_, &replica_speeds_};
  StepProfile profile_;

  // Position in the data.
  struct Epoch {
    int64_t number = 0;
    int64_t steps = 0;  // done in it
  } epoch_;
  // Where train() started; not 0 if the run was resumed.
  struct Start {
    int64_t step = 0;
    int64_t sample = 0;
  } start_;
  std::unique_ptr<StopRequest> stop_;  // from begin() to end()
};

}  // namespace concord
