#include "core/pipeline/model_pipeline.h"

#include <ATen/ops/full.h>
#include <fmt/core.h>

#include <utility>

#include "core/base/config_error.h"

namespace concord {

ModelPipeline::ModelPipeline(Schedule schedule, VirtualModels& models, ParallelContext& job,
                             const ExecutorOptions& options)
    : job_(job) {
  std::vector<Stage*> list;
  for (size_t i = 0; i < models.size(); ++i) list.push_back(&stages_.emplace_back(models[i]));
  executor_ = std::make_unique<Executor>(std::move(schedule), std::move(list), job, options);
}

void ModelPipeline::walk(std::span<const MicroBatch> batches, std::span<const double> weights,
                         std::span<const double> router_weights, const PassOptions& pass) {
  if (batches.size() != static_cast<size_t>(schedule().microbatches)) {
    throw ConfigError(fmt::format("{} micro-batches, but the schedule is for {}; they must be equal", batches.size(),
                                  schedule().microbatches));
  }
  for (ModelStage& stage : stages_) stage.begin(batches, weights, router_weights, pass);
  executor_->run();
}

ModelPipeline::Result ModelPipeline::run(std::span<const MicroBatch> batches, std::span<const double> weights) {
  walk(batches, weights);
  Result result{0, stages_.front().counted_tokens()};
  for (const ModelStage& stage : stages_) result.loss_sum += stage.loss_sum();
  ProcessGroup& pp = job_.group(GroupKind::pp);
  if (pp.size() == 1) return result;
  // One rank has the last stage; its value is sent to the others unchanged.
  const at::Tensor sum = at::full({1}, result.loss_sum, at::kDouble).to(job_.torch_device());
  pp.broadcast(sum, schedule().rank_of(schedule().stages() - 1)).wait();
  result.loss_sum = sum.to(at::kCPU).item<double>();
  return result;
}

}  // namespace concord
