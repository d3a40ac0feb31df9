// What preferences are learnt against: the model as it was at the start, or another one. Where an adapter is trained
// from nothing, it is the model with the adapter off, and needs no memory; else a second model is held. Threads: the
// one that trains.
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
  // |trained|, with its adapter off.
  Reference(const TrainingPlan& plan, ParallelContext& job, VirtualModels& trained);
  Reference(const TrainingPlan& plan, ParallelContext& job, VirtualModels&& own);

  // Forward without autograd of micro-batches that are on the device. On the last stage the losses of their tokens, as
  // ModelStage::token_losses; else nothing. Every rank calls it, with as many micro-batches.
  std::vector<at::Tensor> token_losses(std::span<const MicroBatch> batches);

 private:
  Executor& executor(size_t microbatches);

  const TrainingPlan& plan_;
  ParallelContext& job_;
  std::optional<VirtualModels> own_;
  VirtualModels& model_;
  std::vector<std::unique_ptr<ModelStage>> stages_;
  std::map<size_t, std::unique_ptr<Executor>> executors_;  // by the number of micro-batches
};

}  // namespace concord
