// Trains a model: the loop, evaluation, saving, callbacks. No maths is here; the order of things is.
//
// Example, given const TrainingArguments& arguments, int64_t rank, int64_t world:
//   #include "core/mesh/initialize.h"
//   TrainingPlan plan = plan_training(arguments, rank, world);
//   ParallelContext& job = initialize(initialize_args(plan));
//   Trainer trainer(std::move(plan), job);
//   TrainOutput output = trainer.train();
//   trainer.save_model("model");
//
// Names and results are those of HF's Trainer. Every rank of the job has one and makes the same calls. Errors: what the
// parts throw; a loss or gradient that is not finite is an Error with the step, or with fp16 and without
// check_for_nan_in_loss_and_grad a step without an update. Threads: always the same one.
//
// Steps of zero-bubble pipelines are validated after the fact (TrainingParts::validates_later): the next step's first
// forwards run before a step's gradient norm, and what other ranks want after it, are known. Who looks at a step sees
// its final result all the same: where something is due after a step (a log line, an evaluation, the end, ...) the
// ranks wait for it as they would otherwise; where a rank wants something that nobody knew of (a callback, a signal),
// what the next step has begun is thrown away and comes after it. Only TrainerCallback::on_step_end comes before a
// gradient that is not finite ends the run.
#pragma once

#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/build.h"
#include "trainer/callbacks.h"
#include "trainer/loss_check.h"
#include "trainer/loss_log.h"

namespace concord {

class StopRequest;

// Of one step.
struct StepOutput {
  at::Tensor loss;       // this rank's part, see logged_losses
  int64_t counted = 0;   // tokens of all ranks that the loss counts
  bool updated = false;  // false: skipped, for an overflow or because no token is counted
  double grad_norm = 0;
  int64_t zeros = 0;
  double learning_rate = 0;
  double loss_scale = 1;
};

struct TrainOutput {
  int64_t global_step = 0;
  double training_loss = 0;  // mean over the steps
  NamedValues metrics;       // train_runtime, train_samples_per_second, train_steps_per_second, train_loss, epoch
  std::string reason;        // "finished", or what ended it before
  int stop_signal = 0;       // that ended it before, on whichever rank it came
};

struct EvalLoopOutput {
  double loss = 0;  // mean over all counted tokens
  int64_t num_samples = 0;
  int64_t tokens = 0;
  NamedValues metrics;  // eval_loss, eval_perplexity, eval_runtime, eval_samples_per_second
};

// What a log line says of the steps since the last one.
struct LogWindow {
  int64_t tokens = 0;  // of all ranks, without padding
  int64_t samples = 0;
  double squared_lengths = 0;
  int64_t steps = 0;
  int64_t skipped = 0;
  double last_grad_norm = std::numeric_limits<double>::quiet_NaN();  // of a step that was not skipped
  double largest_grad_norm = std::numeric_limits<double>::quiet_NaN();

  void add(const StepOutput& step);
  void add(const BatchContents& contents);
};

class Trainer {
 public:
  Trainer(TrainingPlan plan, ParallelContext& job, const Providers& providers = {});
  ~Trainer();

  void add_callback(std::shared_ptr<TrainerCallback> callback) { callbacks_.push_back(std::move(callback)); }

  // Until max_steps, the end of the data, a callback's wish or SIGTERM. Once.
  TrainOutput train();
  // One step on this rank's micro-batches, which are on the host.
  StepOutput train_step(const std::vector<MicroBatch>& batches);
  // Forward only, over all of the evaluation data; in train() a signal that asks for the end abandons it, and then
  // nothing is reported of it. Throws ConfigError where there is none.
  EvalLoopOutput evaluate();
  // An HF folder, which must not be there yet. Waits: for all ranks.
  void save_model(const std::filesystem::path& folder);
  // Whether an earlier attempt of this job has written |folder|. Every rank calls it. Waits: for all ranks, in a
  // restarted attempt.
  bool is_saved_already(const std::filesystem::path& folder);

  const TrainerState& state() const { return state_; }
  const TrainingPlan& plan() const { return plan_; }
  ParallelContext& job() { return job_; }
  VirtualModels& model() { return parts_.model; }

 private:
  using Clock = std::chrono::steady_clock;

  bool next_step();
  bool run_step(const std::vector<MicroBatch>& batches);
  void update();
  void blame_the_loss() const;
  Resume after_warm_up(size_t micro_batches);
  void begin_step();
  bool end_of_epoch();
  void decide_what_follows();
  void start_agreement();
  void finish_agreement();
  void agree();
  bool settle();
  bool settle_update();
  void note_step();
  void record(const StepResult& update);
  void check_step(int64_t step) const;
  void do_what_follows();
  void log();
  void save_checkpoint();
  void remember();
  bool evaluate_batches(LossTotals* totals);
  TrainOutput output(double seconds);
  template <class Call>
  void notify(Call call);

  TrainingPlan plan_;
  ParallelContext& job_;
  TrainingParts parts_;
  LossLog losses_;
  TrainerState state_;
  TrainerControl control_;
  StepOutput last_;          // the newest step; its result is known where the optimizer is settled
  bool settled_ = true;      // what follows it is known, on all ranks alike
  bool settles_now_ = true;  // without waiting for the next step's warm-up
  at::Tensor wishes_;        // flags of control_ on their way
  Work agreement_;
  std::optional<LossCheck> loss_check_;  // of the newest step
  const StopRequest* stop_ = nullptr;    // in train() only
  int stop_signal_ = 0;                  // as the ranks agree
  std::vector<std::shared_ptr<TrainerCallback>> callbacks_;
  int64_t epoch_ = 0;           // the number of the one that runs
  int64_t steps_in_epoch_ = 0;  // done
  bool noted_ = true;           // the newest step is in window_
  bool checks_loss_;
  int64_t logging_steps_;
  int64_t eval_steps_;
  int64_t save_steps_;
  int64_t last_saved_ = 0;
  LogWindow window_;  // since the last log line
  Clock::time_point last_log_;
};

}  // namespace concord
