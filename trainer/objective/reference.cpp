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

// While it lives. A model without an adapter is not changed by it.
class AdapterOff {
 public:
  explicit AdapterOff(VirtualModels& model, bool is_off) : model_(model) { set(is_off); }
  ~AdapterOff() { set(false); }
  AdapterOff(const AdapterOff&) = delete;
  AdapterOff& operator=(const AdapterOff&) = delete;

 private:
  void set(bool is_off) {
    for (size_t i = 0; i < model_.size(); ++i) model_[i].turn_adapter(!is_off);
  }
  VirtualModels& model_;
};

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
  const AdapterOff off(model_, !own_);
  for (const auto& stage : stages_) stage->begin(batches);
  executor(batches.size()).run();
  return stages_.back()->token_losses();
}

}  // namespace concord
