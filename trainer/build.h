// From a plan (trainer/plan.h) to what trains, with the job's groups, in this written order: model -> data parallelism
// -> optimizer -> schedules -> stages -> executor. Threads: the one that trains.
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

// What a user may provide instead of what the arguments name; empty ones are made from the arguments.
using ModelProvider = std::function<VirtualModels(const ModelConfig&, const ModelArgs&, ParallelContext&)>;
// Megatron's non_loss_data_func: what a user wants to see of the model after an evaluation. Every rank calls it.
using NonLossData = std::function<std::vector<at::Tensor>(VirtualModels& model)>;
// Megatron's process_non_loss_data_func: |data| after step |step| -> names and numbers, which are logged as eval_NAME.
// Called on every rank of the last stage; what is logged is of the one with the first part of the data and the tokens.
using ProcessNonLossData = std::function<NamedValues(const std::vector<at::Tensor>& data, int64_t step)>;
struct Providers {
  DatasetProvider datasets;
  ModelProvider model;
  ForwardStep forward_step;
  ComputeMetrics compute_metrics = {};            // of every evaluation
  ProcessNonLossData process_non_loss_data = {};  // the same
  NonLossData non_loss_data = {};  // what it is given; empty: what forward_step returned for the last batch
};

// What lives as long as the training. |job| and the plan's data outlive it.
class TrainingParts {
 public:
  TrainingParts(const TrainingPlan& plan, ParallelContext& job, const Providers& providers);

  VirtualModels model;
  DistributedDataParallel data_parallel;
  Optimizer optimizer;
  LrSchedule lr;
  std::optional<LrSettings> decoupled_lr;  // at the counter of |lr|
  std::optional<LossScaler> scaler;        // of fp16
  LossRule loss_rule;
  std::unique_ptr<PairObjective> pairs;  // of stages dpo and rm, else null
  std::unique_ptr<Reference> reference;  // null where the objective has none
  std::unique_ptr<ReferenceTable> reference_table;
  std::vector<std::unique_ptr<ModelStage>> stages;
  Executor forward_executor;  // evaluation
  StepTimers timers;
  BatchCopies copies;
  StepGraph replay;  // passes() of steps that are alike

  enum class Data { train, eval };

  // The micro-batches of the next run of the executor, for all stages; |weights| are those of loss_weights,
  // |router_weights| those of router_loss_weights.
  void begin(std::span<const MicroBatch> batches, std::vector<double> weights, std::vector<double> router_weights);
  void begin_evaluation(std::span<const MicroBatch> batches);
  // Before either of them, of pairs: what the objective needs of the batches, and what the reference makes of them.
  // Nothing happens in other stages.
  void prepare_pairs(std::span<const MicroBatch> host_batches, std::span<const MicroBatch> batches, Data data);
  // With precompute_ref_log_probs: the reference is used now for all training data, and then only for evaluation.
  void precompute_reference(const TrainingPlan& plan);
  // Tokens, or pairs, of this rank that count: those of all dp x cp ranks add up. If |batches| are on the host it does
  // not wait for the device.
  int64_t counted(std::span<const MicroBatch> batches);
  double decoupled_learning_rate() const {  // of the next update; 0: there is none
    return decoupled_lr ? lr_at(*decoupled_lr, lr.counter() + lr.settings().offset) : 0;
  }
  double loss_scale() const { return scaler ? scaler->scale() : 1; }
  // Forward and backward of a step of so many micro-batches. The first call for a number waits for the other ranks.
  Executor& executor(int64_t microbatches);
  // Forward and backward of a step, with which all gradients are in their buffers unless they are being reduced.
  StepPasses passes(const PassInputs& inputs);
  // What an update of so many micro-batches adds to the counter of the learning rate.
  int64_t lr_increment(int64_t microbatches) const;

 private:
  ParallelContext& job_;
  ScheduleRequest schedule_;  // of a full batch
  ExecutorOptions executor_options_;
  std::map<int64_t, std::unique_ptr<Executor>> executors_;  // by the number of micro-batches
};

}  // namespace concord
