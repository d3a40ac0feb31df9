#include "trainer/pretrain.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/config_error.h"
#include "core/mesh/job_environment.h"
#include "core/models/save_folder.h"
#include "core/torch/device.h"
#include "platform/loader/host.h"
#include "trainer/fault_callback.h"
#include "trainer/fewer_ranks.h"
#include "trainer/output_folder.h"
#include "trainer/report/files.h"
#include "trainer/report_callback.h"
#include "trainer/resume.h"
#include "trainer/stop_agreement.h"
#include "trainer/stop_request.h"
#include "trainer/trackers/trackers.h"

namespace concord {
namespace {

// The last thing before training: by now every rank has its model and its data, and all checks have passed.
void claim_output_folder(ParallelContext& job, const OutputRequest& output) {
  job.world_group().barrier().wait();
  if (job.rank() != 0) return;
  prepare_output_folder(output);
  for (const std::string& name : remove_abandoned_saves(output.folder)) {
    loader::log(
        CONCORD_LOG_WARN, "train",
        fmt::format("removed {}, an unfinished save of a run that was killed", (output.folder / name).string()));
  }
}

// HF's name for the file.
void report_test(const NamedValues& metrics, const std::filesystem::path& output_dir, bool writes,
                 FinishReport* finish) {
  nlohmann::ordered_json json;
  for (const auto& [name, value] : metrics) json[name] = value;
  const std::filesystem::path file = output_dir / "test_results.json";
  if (writes) replace_file(file.string(), json.dump(1) + "\n");
  finish->files.emplace_back("test loss", fmt::format("{:.4f}, in {}", metrics.front().second, file.string()));
}

TrainOutput train_in(ParallelContext& job, TrainingPlan plan, const Providers& providers, const RunOptions& options,
                     const std::vector<Fault>& faults, const OutputRequest& request,
                     std::vector<std::unique_ptr<Tracker>> trackers, StopRequest* stop) {
  const std::filesystem::path output_dir = plan.arguments.output.dir;
  const bool saves = plan.arguments.saving.strategy != "no";
  const bool loads_best = plan.arguments.best_model.load_at_end;
  choose_checkpoint(&plan, job);
  Trainer trainer(std::move(plan), job, providers);
  stop->enter(StopRequest::Phase::running);
  claim_output_folder(job, request);
  std::vector<std::shared_ptr<TrainerCallback>> callbacks = options.callbacks;
  if (job.rank() == 0) {
    callbacks.push_back(std::make_shared<ReportCallback>(trainer.plan(), job, trainer.state().global_step,
                                                         options.terminal, options.notes, std::move(trackers)));
  }
  if (!faults.empty()) callbacks.push_back(std::make_shared<FaultCallback>(faults, &trainer));
  for (const auto& callback : callbacks) trainer.add_callback(callback);

  TrainOutput output = trainer.train();
  FinishReport finish{.reason = output.reason, .files = {}, .next = options.next};
  if (saves) {
    const std::filesystem::path folder = output_dir / "model";
    trainer.save_model(folder);
    finish.files = {{"model", folder.string()}};
    if (trainer.plan().arguments.optimizer.ema_decay > 0) {
      trainer.save_average(output_dir / "ema_model");
      finish.files.emplace_back("average", (output_dir / "ema_model").string());
    }
    if (const BestResult& best = trainer.state().best; loads_best && !best.checkpoint.empty()) {
      finish.files.emplace_back("which is", fmt::format("{}, the best: {:.6g}", best.checkpoint, *best.metric));
    }
  } else {
    finish.files = {{"model", "not saved: save_strategy is no"}};
  }
  if (!output.test_metrics.empty()) report_test(output.test_metrics, output_dir, job.rank() == 0, &finish);
  for (const auto& callback : callbacks) callback->on_train_end(trainer.state(), finish);
  output.stop_signal = agreed_stop_signal(job, *stop);
  return output;
}

}  // namespace

void load_device_libraries() { torch_device(current_platform(), 0); }

TrainOutput run_training(TrainingArguments arguments, const Providers& providers, const RunOptions& options) {
  StopRequest stop(StopRequest::Phase::start_up, arguments.saving.exit_signal_grace);
  const JobEnvironment environment = read_job_environment();
  const int64_t full = full_world();
  check_arguments(&arguments, full > 0 ? full : environment.world);
  if (full > 0) keep_global_batch(&arguments, full, environment.world);
  const char* requested = std::getenv(kFaultsVariable);
  const std::vector<Fault> faults = parse_faults(requested != nullptr ? requested : "");
  TrainingPlan plan = plan_training(arguments, environment.rank, environment.world, providers.datasets);
  const OutputRequest request = output_request(arguments, options.inputs);
  std::vector<std::unique_ptr<Tracker>> trackers;
  if (environment.rank == 0) {
    check_output_folder(request);
    trackers = make_trackers(arguments.report);
  }
  plan.is_restarted = request.is_restarted;
  plan.job = request.job;
  ParallelContext& job = initialize(initialize_args(plan), options.store);
  const InprocessHooks& hooks = options.inprocess;
  TrainOutput output;
  try {
    if (hooks.initialized) hooks.initialized(job);
    output = train_in(job, std::move(plan), providers, options, faults, request, std::move(trackers), &stop);
  } catch (const std::exception& error) {
    if (hooks.aborted) hooks.aborted(error);
    throw;
  }
  finalize();
  if (hooks.finalized) hooks.finalized(output);
  return output;
}

TrainOutput pretrain(std::span<const std::string> words, const PretrainParameters& parameters) {
  if (parameters.model_type != ModelType::encoder_or_decoder) {
    throw ConfigError("model_type is encoder_and_decoder; only encoder_or_decoder is supported");
  }
  ExtraArguments extra;
  if (parameters.extra_args_provider) parameters.extra_args_provider(extra);
  const CommandLine line = parse_command_line(words, {&extra, parameters.args_defaults});
  if (line.help || line.print_config) {
    fmt::print("{}", line.help ? arguments_help() + extra.help() : to_yaml(line.arguments));
    return {};
  }
  if (line.nproc > 0 || line.nnodes > 1) {
    throw ConfigError("--nproc and --nnodes are of `concord train`; start this program with `concord launch`");
  }
  RunOptions options{.notes = line.notes, .store = parameters.store, .inprocess = parameters.inprocess};
  if (!line.config.empty()) options.inputs = {line.config};
  return run_training(line.arguments,
                      {.datasets = parameters.train_valid_test_datasets_provider,
                       .model = parameters.model_provider,
                       .forward_step = parameters.forward_step_func,
                       .compute_metrics = parameters.compute_metrics,
                       .process_non_loss_data = parameters.process_non_loss_data_func,
                       .non_loss_data = parameters.non_loss_data_func},
                      options);
}

}  // namespace concord
