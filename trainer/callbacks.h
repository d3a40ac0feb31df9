// What a user's own code can observe while a model trains, and what it can request: HF's TrainerCallback in C++.
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
// Every rank calls its own callbacks at the same points, in the order in which they were added, on the training
// thread. A request of one rank in TrainerControl takes effect on all ranks after the step, so a callback may depend on
// something that only one rank sees. An exception of a callback stops the run.
#pragma once

#include <cstdint>

#include "trainer/report/report.h"

namespace concord {

struct TrainingArguments;

// Where the run is. The same on all ranks.
struct TrainerState {
  int64_t global_step = 0;  // steps done
  int64_t max_steps = 0;
  double epoch = 0;  // with its part that is done
  double num_train_epochs = 0;
  int64_t tokens = 0;  // of all ranks so far
  bool is_world_process_zero = false;
  BestResult best;  // best_metric, best_global_step and best_model_checkpoint
};

// What is to happen after the step. The trainer sets the last three by its arguments before on_step_end; callbacks may
// set or clear them there.
struct TrainerControl {
  bool should_training_stop = false;
  bool should_log = false;
  bool should_evaluate = false;
  bool should_save = false;
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
  virtual void on_evaluate(const TrainerState&, const EvalReport&, TrainerControl&) {}
  // |folder| is complete. With async_save that is some steps after the one that it is named for.
  virtual void on_save(const TrainerState&, const std::string& /*folder*/, TrainerControl&) {}
  // Files that a checkpoint of this step is to have, name and text. Those of rank 0 are written.
  virtual NamedTexts checkpoint_files(const TrainerState&) { return {}; }
};

}  // namespace concord
