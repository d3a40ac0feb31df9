// Arguments of output, logging, evaluation, checkpoints and recovery (training_arguments.h). Needs no libtorch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/enum_names.h"
#include "core/mesh/rendezvous_options.h"

namespace concord {

// A switch whose default depends on other settings.
enum class AutoFlag { automatic, on, off };
template <>
inline constexpr std::string_view kEnumNames<AutoFlag>[] = {"auto", "true", "false"};
inline bool is_on(AutoFlag flag, bool automatic) {
  return flag == AutoFlag::automatic ? automatic : flag == AutoFlag::on;
}

// When to log, evaluate or save. |automatic| exists for evaluations only, until resolve_arguments chooses another.
enum class IntervalStrategy { automatic, no, steps, epoch };
template <>
inline constexpr std::string_view kEnumNames<IntervalStrategy>[] = {"auto", "no", "steps", "epoch"};

enum class TimingLogOption { max, minmax, all };
template <>
inline constexpr std::string_view kEnumNames<TimingLogOption>[] = {"max", "minmax", "all"};

// Action of async_save while the previous checkpoint is still being written.
enum class WhenBusy { wait, skip };
template <>
inline constexpr std::string_view kEnumNames<WhenBusy>[] = {"wait", "skip"};

enum class ReplicaMismatchAction { stop, warn };
template <>
inline constexpr std::string_view kEnumNames<ReplicaMismatchAction>[] = {"stop", "warn"};

enum class RerunMode { validate, disabled };
template <>
inline constexpr std::string_view kEnumNames<RerunMode>[] = {"validate", "disabled"};

enum class RerunAction { go_on, skip, stop };
template <>
inline constexpr std::string_view kEnumNames<RerunAction>[] = {"continue", "skip", "stop"};

enum class ReportTarget { all, none, tensorboard, html, wandb, mlflow, prometheus, otel };
template <>
inline constexpr std::string_view kEnumNames<ReportTarget>[] = {"all",   "none",   "tensorboard", "html",
                                                                "wandb", "mlflow", "prometheus",  "otel"};

enum class StragglerAction {
  warn,     // log one line when a rank becomes a straggler, or its cause changes
  replace,  // warn, and exit the straggler, so that the launcher restarts the job with a new process for it
  none,     // report the times only
};
template <>
inline constexpr std::string_view kEnumNames<StragglerAction>[] = {"warn", "replace", "none"};

struct OutputArguments {
  std::string dir = "trainer_output";
  bool overwrite = false;
  bool operator==(const OutputArguments&) const = default;
};

// Here and below, steps below 1 are a fraction of all steps.
struct LoggingArguments {
  IntervalStrategy strategy = IntervalStrategy::steps;
  double steps = 0;  // 0: see logging_steps() in arguments.h
  bool first_step = false;
  bool nan_inf_filter = true;
  bool params_norm = false;                      // log_params_norm
  AutoFlag token_metrics = AutoFlag::automatic;  // log_token_metrics
  int64_t timing_level = 0;                      // timing_log_level
  TimingLogOption timing_option = TimingLogOption::minmax;
  bool profile = false;
  int64_t profile_step_start = 10;
  int64_t profile_step_end = 12;
  std::vector<std::string> profile_ranks = {"0"};
  bool operator==(const LoggingArguments&) const = default;
};

struct EvaluationArguments {
  std::string data;
  std::vector<std::string> blend;           // eval_data_blend
  std::map<std::string, std::string> sets;  // eval_datasets, by name
  std::string test_data;
  std::vector<std::string> test_blend;  // test_data_blend
  int64_t iters = 0;                    // eval_iters; 0: all of the data
  int64_t batch_size = 8;               // per_device_eval_batch_size
  bool accuracy = false;                // compute_accuracy
  bool uses_ema = false;                // evaluate_ema_weights
  bool predict = false;                 // do_predict
  bool loss_only = false;               // prediction_loss_only
  // auto: evaluates every eval_steps if set, otherwise after every epoch and at the end; no without evaluation data.
  // HF's default is no, which silently ignores the data.
  IntervalStrategy strategy = IntervalStrategy::automatic;
  double steps = 0;            // 0: see eval_steps() in arguments.h
  double delay = 0;            // eval_delay: evaluations are due from this step on, or with strategy epoch this epoch
  bool on_start = false;       // eval_on_start
  std::string sample_prompts;  // file with prompts; the report of each evaluation has their continuations
  int64_t sample_max_new_tokens = 64;

  bool is_given() const { return !data.empty() || !blend.empty() || !sets.empty(); }
  bool has_test() const { return !test_data.empty() || !test_blend.empty(); }
  bool operator==(const EvaluationArguments&) const = default;
};

struct SavingArguments {
  IntervalStrategy strategy = IntervalStrategy::steps;
  double steps = 500;
  int64_t total_limit = 0;  // 0: all are kept
  bool only_model = false;
  bool on_each_node = false;            // save_on_each_node
  bool async = true;                    // async_save
  WhenBusy when_busy = WhenBusy::wait;  // async_save_when_busy
  double memory_limit = 0;              // save_memory_limit, GiB of host memory per rank; 0: see HfSaveOptions
  std::string resume_from;  // resume_from_checkpoint. Empty: no; true, latest: the newest of output_dir; or a folder
  bool verify = true;       // verify_checkpoint
  AutoFlag share_reads = AutoFlag::automatic;  // ckpt_fully_parallel_load
  int64_t exit_signal_grace = 120;
  bool operator==(const SavingArguments&) const = default;
};

// Recovery of a job after a failure.
struct RecoveryArguments {
  int64_t max_restarts = 0;   // after failures without progress
  int64_t memory_steps = 10;  // memory_checkpoint_steps, with max_restarts; 0: none
  int64_t spares = 0;         // processes that wait to become ranks, on each machine, with max_restarts
  bool allow_fewer_ranks = false;
  double rejoin_timeout = 60;  // seconds
  bool operator==(const RecoveryArguments&) const = default;
};

// Where the processes of a job run. Given on the command line only: ranks and files do not have these.
struct LaunchArguments {
  int64_t nproc = 0;             // processes to start on this machine; 0: this process is the job, or one rank of it
  int64_t nnodes = 1;            // machines; each has its own launcher and nproc processes
  int64_t node_rank = 0;         // index of this machine
  std::string master_addr;       // address of the machine with node_rank 0
  int64_t master_port = 0;       // port on that machine; 0: the default
  RendezvousOptions rendezvous;  // --rdzv_*, local_addr
  bool operator==(const LaunchArguments&) const = default;
};

// Parts of a checkpoint that resume_from_checkpoint does not restore; no effect without it.
struct ResumeArguments {
  bool finetune = false;  // all but the weights
  bool no_load_optim = false;
  bool no_load_rng = false;
  bool ignore_data_skip = false;
  bool override_opt_param_scheduler = false;
  bool operator==(const ResumeArguments&) const = default;
};

struct BestModelArguments {
  bool load_at_end = false;  // load_best_model_at_end
  std::string metric;        // metric_for_best_model, with or without eval_; empty: none, or loss with load_at_end
  AutoFlag greater_is_better = AutoFlag::automatic;
  int64_t patience = 0;  // early_stopping_patience; 0: no early stopping
  double threshold = 0;  // early_stopping_threshold
  bool operator==(const BestModelArguments&) const = default;
};

// Against numbers that are wrong without an error (docs/faults.md).
struct FaultArguments {
  int64_t check_replicas_steps = 10;  // 0: never
  ReplicaMismatchAction on_replica_mismatch = ReplicaMismatchAction::stop;
  RerunMode rerun_mode = RerunMode::validate;
  RerunAction rerun_action = RerunAction::go_on;
  double spike_factor = 0;  // 0: spikes are not looked for
  bool operator==(const FaultArguments&) const = default;
};

struct ReportArguments {
  std::vector<ReportTarget> to = {ReportTarget::all};
  std::string run_name = {};  // at the services of |to|; empty: output_dir
  std::string prometheus_host = "127.0.0.1";
  int64_t prometheus_port = 0;  // 0: not given
  bool disable_tqdm = false;
  double peak_flops = 0;  // peak FLOP/s of one device in the training type, for MFU; 0: the plugin's value
  StragglerAction straggler_action = StragglerAction::warn;
  double loss_floor = 0;  // lowest achievable loss, if known; drawn in the report
  bool operator==(const ReportArguments&) const = default;
};

}  // namespace concord
