// Evaluates a model on the evaluation and test data, and keeps track of the best result.
#pragma once

#include <functional>
#include <string>

#include "trainer/build.h"
#include "trainer/checkpoint/best_model.h"
#include "trainer/evaluation/predictions.h"
#include "trainer/generation/prompt_samples.h"
#include "trainer/loop_part.h"
#include "trainer/metrics/step_log.h"

namespace concord {

struct EvalLoopOutput {
  double loss = 0;  // mean over all tokens, or pairs, that count
  int64_t num_samples = 0;
  int64_t tokens = 0;
  double accuracy = 0;  // with compute_accuracy: fraction of the tokens that the model ranks first
  // eval_loss, eval_perplexity, eval_accuracy, eval_runtime, eval_samples_per_second, and the results of
  // compute_metrics. If there are several sets, also eval_NAME_loss, eval_NAME_perplexity and eval_NAME_accuracy, and
  // eval_loss is the mean over the tokens of all sets. Stages dpo and rm report eval_rewards/chosen etc. instead of
  // perplexity.
  NamedValues metrics;
};

class Evaluator final : public LoopPart {
 public:
  // |log| must outlive the evaluator. Waits: for all ranks.
  Evaluator(RunContext& run, const Providers& providers, StepLog& log);

  // Runs forward over all evaluation data and calls on_evaluate. Returns no samples, and calls nothing, if a stop
  // signal ended the evaluation. Throws ConfigError if there is no evaluation data. Waits: for all ranks.
  EvalLoopOutput evaluate();
  // Like evaluate(), but over the test data and without callbacks; metrics are test_loss etc. With do_predict writes
  // predictions.jsonl to output_dir.
  EvalLoopOutput test();

  // The best evaluation so far. The checkpointer tells it of checkpoints.
  BestModel& best() { return best_; }

  void request(bool ends_epoch) override;
  bool act() override;
  void save(TrainingState* state) override { best_.save(state); }
  void restore(const TrainingState& state) override;

 private:
  struct Totals;

  EvalLoopOutput with_eval_weights(const std::function<EvalLoopOutput()>& evaluate);
  EvalLoopOutput evaluate_all_sets();
  EvalLoopOutput evaluate_set(DataLoader& data, const std::string& name, ObjectiveLog* objective, NamedValues* extra);
  bool evaluate_batches(DataLoader& data, Totals* totals);
  void report_predictions(const std::string& name, const std::vector<PredictedSample>& predicted, NamedValues* extra);
  void add_set_metrics(const std::string& name, const EvalLoopOutput& output, NamedValues* extra) const;
  NamedValues non_loss_metrics();
  void report(const EvalLoopOutput& output, NamedValues extra, double seconds);
  bool computes_metrics() const;
  bool writes_predictions(const std::string& name) const;
  int64_t batches_of(const DataLoader& data) const;

  StepLog& log_;
  StepInterval interval_;
  ComputeMetrics compute_metrics_;  // empty: none
  ProcessNonLossData process_non_loss_data_;
  NonLossData non_loss_data_;
  PromptSamples samples_;
  BestModel best_;
};

}  // namespace concord
