// The best evaluation of a run and the checkpoint that belongs to it: HF's load_best_model_at_end,
// metric_for_best_model and greater_is_better. Threads: training thread only.
//
// The best checkpoint is that of the step of the best evaluation, provided that the step is saved as well; until then
// it stays the one before. All ranks hold the same result: the metrics of rank 0 decide.
#pragma once

#include <optional>
#include <string>

#include "core/mesh/parallel_context.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/plan.h"
#include "trainer/report/report.h"

namespace concord {

class BestModel {
 public:
  BestModel(const TrainingPlan& plan, ParallelContext& job);

  // Call after the evaluation at |step|. Does nothing unless the arguments ask for a best model, or if the metrics are
  // empty because the evaluation was stopped. Every rank calls it. Waits: for all ranks.
  void evaluated(int64_t step, const NamedValues& metrics);
  // Returns whether early_stopping_patience consecutive evaluations did not improve by more than the threshold.
  bool should_stop() const { return patience_ > 0 && waited_ >= patience_; }
  // Call when |step| is saved, after its evaluation, if any.
  void saved(int64_t step);

  const BestResult& result() const { return result_; }

  // Writes the result to the state of a checkpoint, and restores it from the checkpoint in |folder|. A best checkpoint
  // that no longer exists on some machine is dropped with a warning. Every rank calls restore. Waits: for all ranks.
  void save(TrainingState* state) const;
  void restore(const TrainingState& state, const std::string& folder);

 private:
  bool is_better(double metric) const;

  ParallelContext& job_;
  std::string output_dir_;
  bool on_each_machine_;  // every machine has its own output_dir
  std::string metric_;    // with the prefix eval_; empty: no best model is tracked
  bool greater_is_better_;
  BestResult result_;
  int64_t patience_;  // 0: no early stopping
  double threshold_;
  int64_t waited_ = 0;  // evaluations since the last improvement
};

}  // namespace concord
