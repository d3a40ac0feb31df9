// A rank's chunks of a model run through a schedule: stages and executor in one, for callers that need only the losses
// and the gradients.
//
// Example, given VirtualModels& models, std::vector<MicroBatch> batches, ParallelContext& job:
//   #include "core/schedule/step_schedule.h"
//   ModelPipeline pipeline(step_schedule({.kind = "zb-v", .pp = 4, .microbatches = 16}), models, job);
//   const auto [loss_sum, tokens] = pipeline.run(batches);
//
// Threads: those of the executor.
#pragma once

#include <deque>
#include <memory>
#include <span>

#include "core/models/auto_model.h"
#include "core/pipeline/executor.h"
#include "core/pipeline/model_stage.h"

namespace concord {

class ModelPipeline {
 public:
  // Throws as Executor does. |models| and |job| outlive it. Waits: for the other ranks of the pipeline.
  ModelPipeline(Schedule schedule, VirtualModels& models, ParallelContext& job, const ExecutorOptions& options = {});

  // On every rank of the pipeline: of the tokens that its data- and context-parallel part has.
  struct Result {
    double loss_sum = 0;  // of the tokens' losses, not weighted
    int64_t counted_tokens = 0;
  };
  // All micro-batches once, as many as the schedule has; weights as ModelStage::begin. Waits: for the loss.
  Result run(std::span<const MicroBatch> batches, std::span<const double> weights = {});
  // The same for those who take what they want from stages(). Waits: as Executor::run.
  void walk(std::span<const MicroBatch> batches, std::span<const double> weights = {},
            std::span<const double> router_weights = {});

  const Schedule& schedule() const { return executor_->schedule(); }
  std::deque<ModelStage>& stages() { return stages_; }  // of this rank, in ascending order

 private:
  ParallelContext& job_;
  std::deque<ModelStage> stages_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace concord
