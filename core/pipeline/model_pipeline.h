// Runs a rank's model chunks through a schedule: stages and executor in one, for callers that need only the losses and
// the gradients.
//
// Example, given VirtualModels& models, std::vector<MicroBatch> batches, ParallelContext& job:
//   #include "core/schedule/step_schedule.h"
//   ModelPipeline pipeline(step_schedule({.kind = "zb-v", .pp = 4, .microbatches = 16}), models, job);
//   const auto [loss_sum, tokens] = pipeline.run(batches);
//
// Threads: same as Executor.
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

  // Totals over the tokens of this data- and context-parallel rank, equal on every rank of the pipeline.
  struct Result {
    double loss_sum = 0;  // sum of the token losses, not weighted
    int64_t counted_tokens = 0;
  };
  // Runs all micro-batches; their number has to be that of the schedule. Weights as in ModelStage::begin. Waits: for
  // the loss.
  Result run(std::span<const MicroBatch> batches, std::span<const double> weights = {});
  // Like run(), but leaves the results in stages(). Arguments as in ModelStage::begin. Waits: as Executor::run.
  void walk(std::span<const MicroBatch> batches, std::span<const double> weights = {},
            std::span<const double> router_weights = {}, const PassOptions& pass = {});

  const Schedule& schedule() const { return executor_->schedule(); }
  std::deque<ModelStage>& stages() { return stages_; }  // this rank's stages, in ascending order

 private:
  ParallelContext& job_;
  std::deque<ModelStage> stages_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace concord
