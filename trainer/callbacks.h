// Callbacks with which a program observes and steers a training run: HF's TrainerCallback in C++.
//
// Example, given Trainer& trainer:
//   #include "trainer/trainer.h"
//   class StopAtGoal : public TrainerCallback {
//     void on_log(const TrainerState&, const StepReport& report, TrainerControl& control) override {
//       if (report.loss < 0.1) control.should_training_stop = true;
//     }
//   };
//   trainer.add_callback(std::make_shared<StopAtGoal>());      // examples/callback is a whole program
//
// Every rank calls its own callbacks at the same points, in the order in which they were added, on the training thread.
// A request that one rank makes in TrainerControl applies to all ranks, after the step, so a callback may depend on
// what only one rank can see. An exception from a callback ends the run.
#pragma once

#include <cstdint>

#include "trainer/report/report.h"

namespace concord {

struct TrainingArguments;

// Progress of the run, identical on all ranks except for is_world_process_zero.
struct TrainerState {
  int64_t global_step = 0;  // steps done
  int64_t max_steps = 0;
  double epoch = 0;  // including the completed fraction of the current one
  double num_train_epochs = 0;
  int64_t tokens = 0;  // tokens trained on so far, over all ranks
  bool is_world_process_zero = false;
  BestResult best;  // best_metric, best_global_step and best_model_checkpoint
};

// Actions after the step. The trainer sets should_log, should_evaluate and should_save according to its arguments before
// on_step_end; callbacks may set or clear them there.
struct TrainerControl {
  bool should_training_stop = false;
  bool should_log = false;
  bool should_evaluate = false;
  bool should_save = false;
  bool should_show_progress = false;  // call on_progress, unless the step is logged
};

class TrainerCallback {
 public:
  virtual ~TrainerCallback() = default;

  virtual void on_train_begin(const TrainingArguments&, const TrainerState&, TrainerControl&) {}
  virtual void on_train_end(const TrainerState&, const FinishReport&) {}
  virtual void on_epoch_begin(const TrainerState&, TrainerControl&) {}
  virtual void on_epoch_end(const TrainerState&, TrainerControl&) {}
  virtual void on_step_begin(const TrainerState&, TrainerControl&) {}
  virtual void on_step_end(const TrainerState&, TrainerControl&) {}
  virtual void on_log(const TrainerState&, const StepReport&, TrainerControl&) {}
  virtual void on_progress(const TrainerState&, const RecentSteps&) {}
  virtual void on_evaluate(const TrainerState&, const EvalReport&, TrainerControl&) {}
  // Called when the checkpoint |folder| is complete; with async_save this is some steps after the step in its name.
  virtual void on_save(const TrainerState&, const std::string& /*folder*/, TrainerControl&) {}
  // Returns additional files (name, text) for the checkpoint of this step. Those of rank 0 are written.
  virtual NamedTexts checkpoint_files(const TrainerState&) { return {}; }
};

}  // namespace concord
