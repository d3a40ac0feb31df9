// The reference model of preference losses: the model as it was at the start, or a different one. If a new adapter is
// trained, the reference is the model with the adapter disabled and needs no memory; otherwise it is a second model.
// Threads: training thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/models/auto_model.h"
#include "core/pipeline/executor.h"
#include "core/pipeline/model_stage.h"
#include "trainer/plan.h"

namespace concord {

class Reference {
 public:
  // Uses |trained| with its adapter disabled.
  Reference(const TrainingPlan& plan, ParallelContext& job, VirtualModels& trained);
  Reference(const TrainingPlan& plan, ParallelContext& job, VirtualModels&& own);

  // Runs forward without autograd over micro-batches on the device. Returns token losses as in ModelStage::token_losses
  // on the last stage; empty elsewhere. Every rank calls it, with the same number of micro-batches.
  std::vector<at::Tensor> token_losses(std::span<const MicroBatch> batches);

 private:
  Executor& executor(size_t microbatches);

  const TrainingPlan& plan_;
  ParallelContext& job_;
  std::optional<VirtualModels> own_;
  VirtualModels& model_;
  std::vector<std::unique_ptr<ModelStage>> stages_;
  std::map<size_t, std::unique_ptr<Executor>> executors_;  // by number of micro-batches
};

}  // namespace concord
