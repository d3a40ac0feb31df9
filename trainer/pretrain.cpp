#include "trainer/pretrain.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/config_error.h"
#include "core/checkpoint/save_folder.h"
#include "core/mesh/agreement.h"
#include "core/mesh/job_environment.h"
#include "core/mesh/platform_crossing.h"
#include "core/torch/device.h"
#include "platform/loader/error.h"
#include "platform/loader/host.h"
#include "trainer/arguments/hub_names.h"
#include "trainer/checkpoint/output_folder.h"
#include "trainer/checkpoint/resume.h"
#include "trainer/health/elastic_layout.h"
#include "trainer/health/fault_callback.h"
#include "trainer/health/memory_check.h"
#include "trainer/metrics/report_callback.h"
#include "trainer/metrics/stage_speeds.h"
#include "trainer/report/files.h"
#include "trainer/stop_agreement.h"
#include "trainer/stop_request.h"
#include "trainer/trackers/trackers.h"

namespace concord {
namespace {

// Returns the ranks of this machine, with save_on_each_node in a job on several machines. Waits: for all ranks.
std::optional<RankRange> ranks_of_machine(const TrainingPlan& plan, ParallelContext& job) {
  if (!plan.arguments.saving.on_each_node) return std::nullopt;
  const Machines machines = machines_of(job);
  check_machines(plan, machines);
  if (machines.first.size() == 1) return std::nullopt;
  return machines.ranks_of(machines.machine_of(job.rank()));
}

// Throws ConfigError if two machines see the same output_dir, which would then have two writers. Every machine creates
// a file there with a new name, which no cache of a network file system contains.
void check_folders_differ(ParallelContext& job, const TrainingPlan& plan, const OutputRequest& output) {
  const std::vector<int64_t> first = machines_of(job).first;
  const std::string nonce = broadcast_text(job, job.rank() == 0 ? make_nonce() : "", 0);
  const auto file_of = [&](int64_t rank) { return output.folder / fmt::format(".concord-machine-{}-{}", nonce, rank); };
  const bool writes = job.rank() == plan.writing_rank();
  run_and_propagate_errors(job, [&] {
    if (!writes) return;
    check_output_folder(output);
    std::filesystem::create_directories(output.folder);
    replace_file(file_of(job.rank()).string(), "\n");
  });
  std::optional<int64_t> other;
  run_and_propagate_errors(job, [&] {
    for (const int64_t rank : first) {
      if (writes && rank != job.rank() && std::filesystem::exists(file_of(rank))) other = rank;
    }
  });
  run_and_propagate_errors(job, [&] {
    if (writes) std::filesystem::remove(file_of(job.rank()));
    if (!other) return;
    throw ConfigError(
        fmt::format("save_on_each_node: output_dir '{}' is the same folder on the machine of rank {}; set "
                    "save_on_each_node to false if machines share output_dir, or give each its own folder",
                    output.folder.string(), *other));
  });
}

// Checkpoints that other machines lack do not get in the way of those to come.
void set_aside_what_others_lack(const TrainingPlan& plan, const OutputRequest& output) {
  const bool is_newest = plan.is_restarted || resumes_from_newest(plan.arguments);
  if (!plan.continues() || !is_newest) return;
  const std::string resumed = std::filesystem::path(plan.resume_from).filename().string();
  for (const std::string& name : rename_newer_checkpoints(output.folder, *checkpoint_step(plan.resume_from))) {
    loader::log(CONCORD_LOG_WARN, "train",
                fmt::format("the run resumes from {}, the newest checkpoint that all machines have; a later one of {} "
                            "is now called {}",
                            resumed, output.folder.string(), name));
  }
}

// The last thing before training: by now every rank has its model and its data, and all checks have passed.
void claim_output_folder(ParallelContext& job, const TrainingPlan& plan, const OutputRequest& output) {
  if (plan.writers) check_folders_differ(job, plan, output);
  if (job.rank() != plan.writing_rank()) return;
  if (plan.writers) set_aside_what_others_lack(plan, output);
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

// Replicas on several platforms need use_distributed_optimizer. Results are the same: it only decides which rank
// updates a weight.
void shard_update_across_platforms(TrainingPlan* plan, const ParallelContext& job) {
  bool& shards = plan->arguments.data_parallel.use_distributed_optimizer;
  if (shards || !replicas_cross_platforms(job)) return;
  shards = true;
  if (job.rank() != 0) return;
  loader::log(
      CONCORD_LOG_INFO, "train",
      fmt::format("replicas are on different platforms ({}), which round updates differently, so each weight is "
                  "updated on one rank, as with use_distributed_optimizer: true",
                  job.platforms().to_string()));
}

// Returns whether |error| is the loss of a rank that has exited on the same signal as this one, before it was ready.
// Waits: for that signal, since schedulers send it to one rank after the other. During start-up its handler exits.
bool is_stopped_before_training(const StopRequest& stop, const std::exception& error) {
  constexpr auto kBetweenSignals = std::chrono::seconds(3);
  const auto* const lost = dynamic_cast<const Error*>(&error);
  if (lost == nullptr || lost->status() != CONCORD_STATUS_PEER_LOST) return false;
  if (stop.phase() == StopRequest::Phase::running) return false;
  const auto deadline = std::chrono::steady_clock::now() + kBetweenSignals;
  while (!stop.requested() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return stop.requested();
}

TrainOutput run_loop(Trainer& trainer, const std::function<void(Trainer&)>& loop) {
  if (!loop) return trainer.train();
  trainer.begin();
  loop(trainer);
  return trainer.end();
}

TrainOutput train_in(ParallelContext& job, TrainingPlan plan, const Providers& providers, const RunOptions& options,
                     const std::vector<Fault>& faults, const OutputRequest& request,
                     std::vector<std::unique_ptr<Tracker>> trackers, StopRequest* stop) {
  const std::filesystem::path output_dir = plan.arguments.output.dir;
  const bool saves = plan.arguments.saving.strategy != IntervalStrategy::no;
  const bool loads_best = plan.arguments.best_model.load_at_end;
  shard_update_across_platforms(&plan, job);
  plan.writers = ranks_of_machine(plan, job);
  choose_checkpoint(&plan, job);
  assign_layers_by_speed(&plan, job);
  const bool writes = job.rank() == plan.writing_rank();
  std::vector<std::string> notes = options.notes;
  if (!providers.model) {
    check_memory(plan, job);
    if (const std::string text = writes ? expected_memory(plan, job) : ""; !text.empty()) notes.push_back(text);
  }
  Trainer trainer(std::move(plan), job, providers);
  job.world_group().barrier().wait();
  // Not before: a rank that is asked to stop while others are still loading has nothing to save, and need not wait.
  stop->enter(StopRequest::Phase::ready);
  claim_output_folder(job, trainer.plan(), request);
  std::vector<std::shared_ptr<TrainerCallback>> callbacks = options.callbacks;
  if (writes) {
    callbacks.push_back(std::make_shared<ReportCallback>(trainer.plan(), job, trainer.state().global_step,
                                                         options.terminal, std::move(notes), std::move(trackers)));
  }
  if (!faults.empty()) callbacks.push_back(std::make_shared<FaultCallback>(faults, &trainer));
  for (const auto& callback : callbacks) trainer.add_callback(callback);

  TrainOutput output = run_loop(trainer, options.loop);
  FinishReport finish{.reason = output.reason, .files = {}, .next = options.next, .unlogged = output.unlogged};
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
  if (!output.test_metrics.empty()) report_test(output.test_metrics, output_dir, writes, &finish);
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
  arguments.has_datasets = providers.datasets != nullptr;
  check_arguments(arguments, full > 0 ? full : environment.world);
  arguments = resolve_arguments(arguments, full > 0 ? full : environment.world);
  if (full > 0) keep_global_batch(&arguments, full, environment.world);
  const char* requested = std::getenv(kFaultsVariable);
  const std::vector<Fault> faults = parse_faults(requested != nullptr ? requested : "");
  const OutputRequest request = output_request(arguments, options.inputs);
  if (environment.world == 1) check_not_in_use(request);  // several ranks take the lock once they have met
  TrainingPlan plan = plan_training(arguments, environment.rank, environment.world, providers.datasets);
  std::vector<std::unique_ptr<Tracker>> trackers;
  plan.is_restarted = request.is_restarted;
  plan.job = request.job;
  const InprocessHooks& hooks = options.inprocess;
  TrainOutput output;
  std::unique_ptr<RunLock> lock;
  try {
    ParallelContext& job = initialize(initialize_args(plan), options.store);
    if (hooks.initialized) hooks.initialized(job);
    const bool has_own_folder = arguments.saving.on_each_node && environment.local_rank == 0;
    OutputRequest locked = request;
    if (arguments.saving.on_each_node) {  // one name for all machines, whose launchers may have one each
      locked.job = broadcast_text(job, job.rank() == 0 ? make_nonce() : "", 0);
      locked.is_unique_job = true;
    }
    run_and_propagate_errors(job, [&] {  // what one machine refuses ends the job on all of them
      if (environment.rank == 0 || has_own_folder) {
        lock = lock_output_folder(locked);
        check_output_folder(request);
      }
      if (environment.rank == 0) trackers = make_trackers(arguments.report);
    });
    output = train_in(job, std::move(plan), providers, options, faults, request, std::move(trackers), &stop);
  } catch (const std::exception& error) {
    if (hooks.aborted) hooks.aborted(error);
    if (!is_stopped_before_training(stop, error)) throw;
    output.stop_signal = stop.signal();
    output.reason = fmt::format("stopped by {} before the first step", stop_signal_name(output.stop_signal));
    return output;  // without finalize(), which would wait for the lost rank
  }
  finalize();
  if (hooks.finalized) hooks.finalized(output);
  return output;
}

TrainOutput pretrain(std::span<const std::string> args, const PretrainParameters& parameters) {
  if (parameters.model_type != ModelType::encoder_or_decoder) {
    throw ConfigError("model_type is encoder_and_decoder; only encoder_or_decoder is supported");
  }
  ExtraArguments extra;
  if (parameters.extra_args_provider) parameters.extra_args_provider(extra);
  CommandLine line = parse_command_line(args, {&extra, parameters.args_defaults});
  if (line.help || line.print_config) {
    fmt::print("{}", line.help ? arguments_help() + extra.help() : to_yaml(line.arguments));
    return {};
  }
  if (line.arguments.launch.nproc > 0 || line.arguments.launch.nnodes > 1) {
    throw ConfigError("--nproc and --nnodes are of `concord train`; start this program with `concord launch`");
  }
  use_cached_models(&line.arguments, &line.notes);
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
