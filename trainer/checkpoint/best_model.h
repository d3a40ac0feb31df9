// The best evaluation of a run and the checkpoint that belongs to it: HF's load_best_model_at_end,
// metric_for_best_model and greater_is_better. Threads: the one that trains.
//
// The best checkpoint is that of the step of the best evaluation, provided that the step is saved as well; until then
// it stays the one before. All ranks have the same: the first one's numbers count.
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

  // After the evaluation at |step|. Does nothing where the arguments ask for no best model, or the metrics are empty
  // because the evaluation was abandoned. Every rank calls it. Waits: for all ranks.
  void evaluated(int64_t step, const NamedValues& metrics);
  // Whether early_stopping_patience evaluations in a row have not been better by more than the threshold.
  bool should_stop() const { return patience_ > 0 && waited_ >= patience_; }
  // After the evaluation, if any: |step| is saved.
  void saved(int64_t step);

  const BestResult& result() const { return result_; }

  // Into the state of a checkpoint, and out of the one in |folder|. A best checkpoint that is gone, on any machine, is
  // forgotten, with a warning. Every rank calls restore. Waits: for all ranks.
  void save(TrainingState* state) const;
  void restore(const TrainingState& state, const std::string& folder);

 private:
  bool is_better(double metric) const;

  ParallelContext& job_;
  std::string output_dir_;
  bool on_each_machine_;  // has every machine an output_dir of its own?
  std::string metric_;    // with eval_; empty: none is wanted
  bool greater_is_better_;
  BestResult result_;
  int64_t patience_;  // 0: no early stopping
  double threshold_;
  int64_t waited_ = 0;  // evaluations since the last that was better
};

}  // namespace concord
