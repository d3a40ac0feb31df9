// A whole training run in one call, as in Megatron; `concord train` is this without user code.
//
// Example, given const TrainingArguments& arguments, ForwardStep forward_step:
//   const TrainOutput output = pretrain(arguments, {}, {}, forward_step);
//
// Each of the three may be omitted ({}): the data, the model and the loss are then those of the arguments. What
// compute_metrics makes of every evaluation (trainer/predictions.h) is logged and can be metric_for_best_model. Every
// process of the job calls it. It checks all it can, joins the job, builds the model, and only then clears output_dir
// of another run; then it trains, saves the model to output_dir/model and leaves the job.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/trainer.h"

namespace concord {

struct RunOptions {
  std::vector<std::shared_ptr<TrainerCallback>> callbacks = {};
  int terminal = 1;                      // file descriptor of the progress, on rank 0
  std::vector<std::string> inputs = {};  // files that are read besides those that the arguments name
  std::vector<std::string> notes = {};   // what to print before the run, one line each
  std::vector<std::string> next = {};    // what to try next, for the summary
};

// Loads the plugin and the libraries of its device, which run_training would load first. For a process that waits to
// become a rank (core/launch/spare_process.h). Throws as current_platform and torch_device do.
void load_device_libraries();

// Throws ConfigError for invalid settings, before any group is made if possible; Error and std::runtime_error
// for later failures. Waits: for the other ranks.
TrainOutput run_training(TrainingArguments arguments, const Providers& providers = {}, const RunOptions& options = {});

TrainOutput pretrain(const TrainingArguments& arguments, DatasetProvider dataset_provider, ModelProvider model_provider,
                     ForwardStep forward_step, ComputeMetrics compute_metrics = {});

}  // namespace concord
