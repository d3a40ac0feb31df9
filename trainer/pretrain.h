// A whole training run in one call, as in Megatron; `concord train` is this without user code.
//
// Example, given const std::vector<std::string>& words, ForwardStep forward_step:
//   const TrainOutput output = pretrain(words, {.forward_step_func = forward_step});
//
// Every parameter may be omitted: the data, the model and the loss are then those of the arguments. examples/pretrain
// uses them all. Every process of the job calls it. It checks all it can, joins the job, builds the model, and only
// then clears output_dir of another run; then it trains, saves the model to output_dir/model and leaves the job.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/trainer.h"

namespace concord {

// Called in this process, on every rank, around what happens to the job. Megatron's inprocess_call_wrapper starts a
// failed run again within the process; here the launcher does, with new processes (max_restarts), and these are for
// what a program has of its own: its threads, connections, monitors.
struct InprocessHooks {
  std::function<void(ParallelContext& job)> initialized = {};     // all ranks have met; there is no model yet
  std::function<void(const std::exception& error)> aborted = {};  // |error| ends the run
  std::function<void(const TrainOutput& output)> finalized = {};  // the run is over and the job has been left
};

struct RunOptions {
  std::vector<std::shared_ptr<TrainerCallback>> callbacks = {};
  int terminal = 1;                      // file descriptor of the progress, on rank 0
  std::vector<std::string> inputs = {};  // files that are read besides those that the arguments name
  std::vector<std::string> notes = {};   // what to print before the run, one line each
  std::vector<std::string> next = {};    // what to try next, for the summary
  std::shared_ptr<Store> store = {};     // in which the ranks meet (core/mesh/initialize.h); null: a new one
  InprocessHooks inprocess = {};
};

// Loads the plugin and the libraries of its device, which run_training would load first. For a process that waits to
// become a rank (core/launch/processes/spare_process.h). Throws as current_platform and torch_device do.
void load_device_libraries();

// Throws ConfigError for invalid settings, before any group is made if possible; Error and std::runtime_error
// for later failures. Waits: for the other ranks.
TrainOutput run_training(TrainingArguments arguments, const Providers& providers = {}, const RunOptions& options = {});

// Kinds of models that Megatron tells apart. Only the first is supported.
enum class ModelType { encoder_or_decoder, encoder_and_decoder };

// Those of Megatron's pretrain, under its names and in its order, and in the end compute_metrics, which is HF's.
// get_embedding_ranks and get_position_embedding_ranks are not among them: pipeline_model_parallel_layout says where
// the embedding is.
struct PretrainParameters {
  DatasetProvider train_valid_test_datasets_provider = {};
  ModelProvider model_provider = {};
  ModelType model_type = ModelType::encoder_or_decoder;
  ForwardStep forward_step_func = {};
  ProcessNonLossData process_non_loss_data_func = {};
  std::function<void(ExtraArguments&)> extra_args_provider = {};  // adds arguments of the program's own
  std::map<std::string, std::string> args_defaults = {};          // by name; what the user gives comes first
  NonLossData non_loss_data_func = {};
  std::shared_ptr<Store> store = {};
  InprocessHooks inprocess = {};
  ComputeMetrics compute_metrics = {};
};

// |words| are the arguments of the program, as `concord train` takes them. --help and --print_config print to standard
// output and do no more. Throws as run_training does.
TrainOutput pretrain(std::span<const std::string> words, const PretrainParameters& parameters);

}  // namespace concord
