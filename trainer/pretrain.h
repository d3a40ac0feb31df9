// A whole training run in one call, as in Megatron; `concord train` is this without user code.
//
// Example, given const std::vector<std::string>& args, ForwardStep forward_step:
//   const TrainOutput output = pretrain(args, {.forward_step_func = forward_step});
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

// Hooks that are called in this process, on every rank, at the start and the end of the job. Megatron's
// inprocess_call_wrapper restarts a failed run within the process; here the launcher starts new processes
// (max_restarts), and the hooks let a program manage its own threads, connections and monitors.
struct InprocessHooks {
  std::function<void(ParallelContext& job)> initialized = {};  // all ranks are connected; the model does not exist yet
  std::function<void(const std::exception& error)> aborted = {};  // |error| ends the run
  std::function<void(const TrainOutput& output)> finalized = {};  // the run is over and this rank has left the job
};

struct RunOptions {
  std::vector<std::shared_ptr<TrainerCallback>> callbacks = {};
  int terminal = 1;                      // file descriptor of the progress, on rank 0
  std::vector<std::string> inputs = {};  // files that are read in addition to those that the arguments name
  std::vector<std::string> notes = {};   // lines to print before the run
  std::vector<std::string> next = {};    // suggestions for the summary
  std::shared_ptr<Store> store = {};     // rendezvous store (core/mesh/initialize.h); null: a new one
  InprocessHooks inprocess = {};
  // The loop of the run: calls step() (trainer/trainer.h) until it returns false, or fewer times. Empty: until then.
  std::function<void(Trainer& trainer)> loop = {};
};

// Loads the plugin and the libraries of its device in advance, in a spare process that waits to become a rank
// (core/launch/processes/spare_process.h). Throws as current_platform and torch_device do.
void load_device_libraries();

// Throws ConfigError for invalid settings, before any group is made if possible; Error and std::runtime_error
// for later failures. Waits: for the other ranks.
TrainOutput run_training(TrainingArguments arguments, const Providers& providers = {}, const RunOptions& options = {});

// Megatron's kinds of models. Only the first is supported.
enum class ModelType { encoder_or_decoder, encoder_and_decoder };

// The parameters of Megatron's pretrain, with the same names in the same order, followed by HF's compute_metrics.
// get_embedding_ranks and get_position_embedding_ranks are not among them: pipeline_model_parallel_layout says where
// the embedding is.
struct PretrainParameters {
  DatasetProvider train_valid_test_datasets_provider = {};
  ModelProvider model_provider = {};
  ModelType model_type = ModelType::encoder_or_decoder;
  ForwardStep forward_step_func = {};
  ProcessNonLossData process_non_loss_data_func = {};
  std::function<void(ExtraArguments&)> extra_args_provider = {};  // adds custom arguments
  std::map<std::string, std::string> args_defaults =
      {};  // defaults by argument name; arguments of the user take precedence
  NonLossData non_loss_data_func = {};
  std::shared_ptr<Store> store = {};
  InprocessHooks inprocess = {};
  ComputeMetrics compute_metrics = {};
};

// |args| are the arguments of the program, as in `concord train`. --help and --print_config print to standard
// output and do no more. Throws as run_training does.
TrainOutput pretrain(std::span<const std::string> args, const PretrainParameters& parameters);

}  // namespace concord
