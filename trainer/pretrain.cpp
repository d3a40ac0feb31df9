#include "trainer/pretrain.h"

#include <filesystem>

#include "core/mesh/job_environment.h"
#include "trainer/output_folder.h"
#include "trainer/report_callback.h"

namespace concord {
namespace {

TrainOutput train_in(ParallelContext& job, TrainingPlan plan, const Providers& providers, const RunOptions& options) {
  const std::filesystem::path output_dir = plan.arguments.output_dir;
  const bool saves = plan.arguments.save_strategy != "no";
  Trainer trainer(std::move(plan), job, providers);
  std::vector<std::shared_ptr<TrainerCallback>> callbacks = options.callbacks;
  if (job.rank() == 0) {
    callbacks.push_back(std::make_shared<ReportCallback>(trainer.plan(), job, options.terminal, options.notes));
  }
  for (const auto& callback : callbacks) trainer.add_callback(callback);

  TrainOutput output = trainer.train();
  FinishReport finish{.reason = output.reason, .files = {}, .next = options.next};
  if (saves) {
    const std::filesystem::path folder = output_dir / "model";
    trainer.save_model(folder);
    finish.files = {{"model", folder.string()}};
  } else {
    finish.files = {{"model", "not saved: save_strategy is no"}};
  }
  for (const auto& callback : callbacks) callback->on_train_end(trainer.state(), finish);
  return output;
}

}  // namespace

TrainOutput run_training(TrainingArguments arguments, const Providers& providers, const RunOptions& options) {
  const JobEnvironment environment = read_job_environment();
  check_arguments(&arguments, environment.world);
  TrainingPlan plan = plan_training(arguments, environment.rank, environment.world, providers.datasets);
  if (environment.rank == 0) prepare_output_folder(arguments.output_dir, arguments.overwrite_output_dir);
  ParallelContext& job = initialize(initialize_args(plan));
  TrainOutput output = train_in(job, std::move(plan), providers, options);
  finalize();
  return output;
}

TrainOutput pretrain(const TrainingArguments& arguments, DatasetProvider dataset_provider, ModelProvider model_provider,
                     ForwardStep forward_step) {
  return run_training(arguments, {std::move(dataset_provider), std::move(model_provider), std::move(forward_step)});
}

}  // namespace concord
