#include "trainer/objective/reference.h"

#include <utility>

#include "core/schedule/step_schedule.h"

namespace concord {
namespace {

std::vector<std::unique_ptr<ModelStage>> stages_of(VirtualModels& model) {
  std::vector<std::unique_ptr<ModelStage>> stages;
  for (size_t i = 0; i < model.size(); ++i) stages.push_back(std::make_unique<ModelStage>(model[i]));
  return stages;
}

}  // namespace

Reference::Reference(const TrainingPlan& plan, ParallelContext& job, VirtualModels& trained)
    : plan_(plan), job_(job), model_(trained), stages_(stages_of(model_)) {}

Reference::Reference(const TrainingPlan& plan, ParallelContext& job, VirtualModels&& own)
    : plan_(plan), job_(job), own_(std::move(own)), model_(*own_), stages_(stages_of(model_)) {}

Executor& Reference::executor(size_t microbatches) {
  std::unique_ptr<Executor>& executor = executors_[microbatches];
  if (!executor) {
    std::vector<Stage*> stages;
    for (const auto& stage : stages_) stages.push_back(stage.get());
    executor = std::make_unique<Executor>(evaluation_schedule(plan_.schedule, static_cast<int64_t>(microbatches)),
                                          std::move(stages), job_, plan_.arguments.pipeline.executor);
  }
  return *executor;
}

std::vector<at::Tensor> Reference::token_losses(std::span<const MicroBatch> batches) {
  for (const auto& stage : stages_) stage->begin(batches, {}, {}, {.with_adapter = own_.has_value()});
  executor(batches.size()).run();
  return stages_.back()->token_losses();
}

}  // namespace concord
