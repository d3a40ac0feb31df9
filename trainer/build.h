// Builds the objects of a training run from its plan (trainer/plan.h), in this order: model -> data parallelism ->
// optimizer -> schedules -> stages -> executor. Threads: training thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/data_parallel/ddp.h"
#include "core/mesh/initialize.h"
#include "core/models/auto_model.h"
#include "core/optim/loss_scaler.h"
#include "core/optim/lr_schedule.h"
#include "core/optim/optimizer.h"
#include "core/pipeline/executor.h"
#include "trainer/device_batch.h"
#include "trainer/evaluation/predictions.h"
#include "trainer/metrics/step_timers.h"
#include "trainer/objective/pair_objective.h"
#include "trainer/objective/reference.h"
#include "trainer/objective/reference_table.h"
#include "trainer/objective/step_loss.h"
#include "trainer/plan.h"
#include "trainer/step_graph.h"

namespace concord {

// Functions that a program may provide; empty ones are replaced by what the arguments specify.
using ModelProvider = std::function<VirtualModels(const ModelConfig&, const ModelArgs&, ParallelContext&)>;
// Megatron's non_loss_data_func: returns tensors to log after an evaluation. Called on every rank.
using NonLossData = std::function<std::vector<at::Tensor>(VirtualModels& model)>;
// Megatron's process_non_loss_data_func: |data| after step |step| -> metrics, which are logged as eval_NAME. Called on
// every rank of the last stage; the result of the first data- and context-parallel rank is logged.
using ProcessNonLossData = std::function<NamedValues(const std::vector<at::Tensor>& data, int64_t step)>;
struct Providers {
  DatasetProvider datasets;
  ModelProvider model;
  ForwardStep forward_step;
  ComputeMetrics compute_metrics = {};            // called after every evaluation
  Multipliers multipliers = {};                   // further factors of a parameter's learning rate and weight decay
  ProcessNonLossData process_non_loss_data = {};  // called after every evaluation
  NonLossData non_loss_data = {};  // input of process_non_loss_data; empty: the token losses of the last batch
};

// The objects of a training run. |job| and the plan's data must outlive them.
class TrainingParts {
 public:
  TrainingParts(const TrainingPlan& plan, ParallelContext& job, const Providers& providers);

  VirtualModels model;
  DistributedDataParallel data_parallel;
  Optimizer optimizer;
  LrSchedule lr;
  std::optional<LrSettings> decoupled_lr;  // uses the counter of |lr|
  std::optional<LossScaler> scaler;        // fp16 only
  LossRule loss_rule;
  std::unique_ptr<PairObjective> pairs;  // null except in stages dpo and rm
  std::unique_ptr<Reference> reference;  // null if the objective has none
  std::unique_ptr<ReferenceTable> reference_table;
  std::vector<std::unique_ptr<ModelStage>> stages;
  Executor forward_executor;  // for evaluation
  StepTimers timers;
  BatchCopies copies;
  StepGraph graph;         // forward_backward of identical steps, recorded and replayed
  bool log_token_metrics;  // statistics of tokens are measured in every pass

  enum class Data { train, eval };

  // Sets the micro-batches of the next run of forward_executor. |observer| receives the parts of the last stage.
  void begin_evaluation(std::span<const MicroBatch> batches, const Observer& observer = {});
  // Passes batches of pairs, and the reference's log-probabilities of them, to the objective. Call before
  // forward_backward and begin_evaluation. Does nothing except in stages dpo and rm.
  void prepare_pairs(std::span<const MicroBatch> host_batches, std::span<const MicroBatch> batches, Data data);
  // With precompute_ref_log_probs, runs the reference over all training data; later it is used for evaluation only.
  void precompute_reference(const TrainingPlan& plan);
  // Returns the number of tokens, or pairs, of this rank that the loss covers; the sum over all dp x cp ranks is that
  // of the batch. Does not wait for the device if |batches| are on the host.
  int64_t counted(std::span<const MicroBatch> batches);
  double decoupled_learning_rate() const {  // learning rate of the next update; 0: unused
    return decoupled_lr ? lr_at(*decoupled_lr, lr.counter() + lr.settings().offset) : 0;
  }
  double loss_scale() const { return scaler ? scaler->scale() : 1; }
  // Returns the executor for steps of |count| micro-batches. The first call for each number waits for the other ranks.
  Executor& executor(int64_t count);
  // Returns what an update of a batch of |rows|, over all replicas, adds to the counter of the learning rate.
  int64_t lr_increment(int64_t rows) const;

 private:
  ParallelContext& job_;
  int64_t full_batch_rows_;
  ScheduleRequest schedule_;  // schedule of a full batch
  ExecutorOptions executor_options_;
  std::map<int64_t, std::unique_ptr<Executor>> executors_;  // by the number of micro-batches
};

}  // namespace concord
