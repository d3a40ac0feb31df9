// The values of all arguments of a training run; trainer/arguments/arguments.h reads, checks and prints them. Needs no
// libtorch. Threads: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/data_parallel/data_parallel_options.h"
#include "core/mesh/initialize_args.h"
#include "core/models/model_options.h"
#include "core/optim/loss_scaler.h"
#include "core/optim/lr_schedule.h"
#include "core/optim/optimizer_options.h"
#include "core/pipeline/executor_options.h"
#include "core/schedule/layer_layout.h"
#include "trainer/data/arguments.h"

namespace concord {

// A data set of LLaMA-Factory's, instead of a path (trainer/data/text/dataset_info.h).
struct DatasetArguments {
  std::string name;  // dataset; empty: none
  std::string dir = "data";
  bool operator==(const DatasetArguments&) const = default;
};

// Where the model comes from: exactly one of the two.
struct ModelSource {
  std::string path;    // an HF folder to start from
  std::string config;  // an HF config.json; weights are drawn from the seed
  bool operator==(const ModelSource&) const = default;
};

// What of the model is trained.
struct FinetuningArguments {
  std::string type = "full";  // finetuning_type: all weights, or with lora an adapter beside frozen ones
  int64_t rank = 8;           // lora_rank
  double alpha = 0;           // lora_alpha; 0: two times the rank
  double dropout = 0;         // lora_dropout
  std::vector<std::string> target = {"all-linear"};  // lora_target
  bool use_rslora = false;
  bool use_dora = false;
  std::string init = "true";  // init_lora_weights
  std::map<std::string, std::string> rank_pattern, alpha_pattern;
  std::vector<std::string> modules_to_save;
  // adapter_name_or_path: folders with commas between them. All but the last are added to the weights; the last one is
  // started from, and the settings above are then its own,
  std::string adapter;
  bool new_adapter = false;      // create_new_adapter: unless it is added too, and the trained one is new
  int64_t quantization_bit = 0;  // 4: frozen weights of linear layers are held in nf4

  bool is_lora() const { return type == "lora"; }
  bool operator==(const FinetuningArguments&) const = default;
};

// What is learnt: the tokens that follow, or which of two completions is preferred (docs/preferences.md).
struct PreferenceArguments {
  std::string stage = "sft";     // pt and sft: tokens, by the data; dpo: preferences; rm: a reward model
  std::string loss = "sigmoid";  // pref_loss, see trainer/objective/preference_loss.h
  double beta = 0.1;             // pref_beta
  double ftx = 0;                // pref_ftx
  double label_smoothing = 0;    // dpo_label_smoothing
  double simpo_gamma = 0.5;
  double ld_alpha = 1;
  bool reference_free = false;
  std::string ref_model = {};
  bool precompute_reference = false;  // precompute_ref_log_probs
  double center_rewards_coefficient = 0;

  bool learns_pairs() const { return stage == "dpo" || stage == "rm"; }
  bool uses_average_logps() const {
    return loss == "orpo" || loss == "simpo";
  }  // of log-probabilities, not of their sums
  bool uses_reference() const { return stage == "dpo" && !reference_free && !uses_average_logps(); }
  bool operator==(const PreferenceArguments&) const = default;
};

// Which parameters are trained, and how fast; patterns as in trainer/parameter_groups.h.
struct GroupArguments {
  std::vector<std::string> freeze;
  std::map<std::string, std::string> lr_mult_pattern, weight_decay_mult_pattern;
  double head_lr_mult = 1;
  double decoupled_lr = 0;       // 0: as the others
  double decoupled_min_lr = -1;  // -1: min_lr
  bool operator==(const GroupArguments&) const = default;
};

// How large the steps are and how many of them there are.
struct StepArguments {
  int64_t global_batch_size = 0;  // above 0: check_arguments finds gradient_accumulation_steps by it
  double num_train_epochs = 3;
  int64_t max_steps = -1;                      // above 0 it wins over num_train_epochs
  int64_t train_samples = 0;                   // above 0 the length of the run in samples instead of max_steps
  bool decrease_batch_size = false;            // decrease_batch_size_if_needed
  std::vector<std::string> rampup_batch_size;  // the first global batch size, its increment, samples until the full one
  std::vector<std::string> iterations_to_skip;  // numbers of steps, counted from 1
  int64_t exit_interval = 0;                    // 0: here and below, not
  double exit_duration_in_mins = 0;
  bool has_length() const { return max_steps > 0 || train_samples > 0; }  // else num_train_epochs says it
  bool operator==(const StepArguments&) const = default;
};

struct PrecisionArguments {
  bool bf16 = false;
  bool fp16 = false;  // neither: 32 bits
  bool check_for_nan_in_loss_and_grad = true;

  // With fp16 a loss or gradient that is not finite is a step to be skipped, and the scale is halved.
  bool stops_on_not_finite() const { return check_for_nan_in_loss_and_grad && !fp16; }
  bool operator==(const PrecisionArguments&) const = default;
};

struct PipelineArguments {
  std::string schedule = "auto";  // auto: 1f1b, or interleaved with virtual stages
  std::string layout;             // pipeline_model_parallel_layout; empty: as |deal| says
  LayerAssignment deal;           // sizes and placement are the schedule's
  ExecutorOptions executor;
  bool replay_steps = true;
  bool operator==(const PipelineArguments&) const = default;
};

struct OutputArguments {
  std::string dir = "trainer_output";
  bool overwrite = false;
  bool operator==(const OutputArguments&) const = default;
};

// Here and below, steps below 1 are a share of all steps.
struct LoggingArguments {
  std::string strategy = "steps";
  double steps = 500;
  bool first_step = false;
  bool nan_inf_filter = true;
  bool params_norm = false;            // log_params_norm
  std::string token_metrics = "auto";  // log_token_metrics
  int64_t timing_level = 0;            // timing_log_level
  std::string timing_option = "minmax";
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
  // Data to evaluate on is evaluated on: every eval_steps where these are given, else after every epoch and at the end.
  // HF's default is no, with which nobody hears that the data was not used.
  std::string strategy = "auto";
  double steps = 0;            // 0: as logging_steps
  std::string sample_prompts;  // a file with prompts; what the model makes of them is in the report of each evaluation
  int64_t sample_max_new_tokens = 64;

  bool is_given() const { return !data.empty() || !blend.empty() || !sets.empty(); }
  bool has_test() const { return !test_data.empty() || !test_blend.empty(); }
  bool operator==(const EvaluationArguments&) const = default;
};

struct SavingArguments {
  std::string strategy = "steps";
  double steps = 500;
  int64_t total_limit = 0;  // 0: all are kept
  bool only_model = false;
  bool on_each_node = false;       // save_on_each_node
  bool async = true;               // async_save
  std::string when_busy = "wait";  // async_save_when_busy
  double memory_limit = 0;         // save_memory_limit, GiB of host memory per rank; 0: see HfSaveOptions
  std::string resume_from;  // resume_from_checkpoint. Empty: no; true, latest: the newest of output_dir; or a folder
  bool verify = true;       // verify_checkpoint
  std::string share_reads = "auto";  // ckpt_fully_parallel_load
  int64_t exit_signal_grace = 120;
  bool operator==(const SavingArguments&) const = default;
};

// What becomes of a job after a failure.
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
  int64_t nproc = 0;        // processes to start on this machine; 0: this process is the job, or one rank of it
  int64_t nnodes = 1;       // machines; each has its own launcher and nproc processes
  int64_t node_rank = 0;    // index of this machine
  std::string master_addr;  // address of the machine with node_rank 0
  int64_t master_port = 0;  // port on that machine; 0: the default
  // How launchers on several machines find their leader: see RendezvousOptions.
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint;
  std::string rdzv_id;
  std::string rdzv_conf;
  std::string local_addr;
  bool operator==(const LaunchArguments&) const = default;
};

// What a run with resume_from_checkpoint does not take from the checkpoint; no effect without one.
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
  std::string greater_is_better = "auto";
  int64_t patience = 0;  // early_stopping_patience; 0: no early stopping
  double threshold = 0;  // early_stopping_threshold
  bool operator==(const BestModelArguments&) const = default;
};

// Against numbers that are wrong without an error (docs/faults.md).
struct FaultArguments {
  int64_t check_replicas_steps = 10;         // 0: never
  std::string on_replica_mismatch = "stop";  // or warn
  std::string rerun_mode = "validate";       // or disabled
  std::string rerun_action = "continue";     // or skip, stop
  double spike_factor = 0;                   // 0: spikes are not looked for
  bool operator==(const FaultArguments&) const = default;
};

struct ReportArguments {
  std::vector<std::string> to = {"all"};
  std::string run_name = {};  // at the services of |to|; empty: output_dir
  std::string prometheus_host = "127.0.0.1";
  int64_t prometheus_port = 0;  // 0: not given
  bool disable_tqdm = false;
  double peak_flops = 0;  // of one device, in the type trained in, for MFU; 0: as the plugin knows
  std::string straggler_action = "warn";
  double loss_floor = 0;  // the best loss there can be, where that is known; drawn in the report
  bool operator==(const ReportArguments&) const = default;
};

// By concern. Where core has a struct for one, it is that struct, which is passed on as it is; what of it no argument
// sets is filled in by the plan (trainer/plan.h) or when the parts are built (trainer/build.h).
struct TrainingArguments {
  ModelSource model;
  FinetuningArguments finetuning;
  PreferenceArguments preference;
  DatasetArguments dataset;
  // cache: empty is the default, none is none. tokenizer: empty is the model's own, "byte" where a model starts afresh.
  // seq_length: 0 is as the data has it, else the model's max_position_embeddings. seed: 0 is the job's.
  DataArguments data = {.tokenizer = "", .micro_batch_size = 8, .seed = 0, .prefetch = 2};
  StepArguments steps;
  OptimizerOptions optimizer;
  GroupArguments groups;
  LrArguments lr;
  PrecisionArguments precision;
  LossScalerSettings loss_scaler;  // of fp16
  InitializeArgs job;
  // sequence_parallel: with tensor_model_parallel_size 1 it is the same as false, and becomes it.
  ModelOptions model_options;
  PipelineArguments pipeline;
  // accumulate_allreduce_grads_in_fp32: always so with bf16 and fp16. calculate_per_token_loss: the loss, and with it
  // the gradient, is the sum over all counted tokens of the step divided by their number. ROLL's default is false: the
  // mean over the micro-batches of each one's mean, in which a token weighs more where there are few.
  DataParallelOptions data_parallel = {.overlap_grad_reduce = false,
                                       .delay_grad_reduce = true,
                                       .accumulate_allreduce_grads_in_fp32 = false,
                                       .calculate_per_token_loss = true};
  OutputArguments output;
  LoggingArguments logging;
  EvaluationArguments evaluation;
  SavingArguments saving;
  LaunchArguments launch;
  RecoveryArguments recovery;
  ResumeArguments resume;
  BestModelArguments best_model;
  FaultArguments faults;
  ReportArguments report;
  std::map<std::string, std::string> extra;  // arguments of the program's own (extra_arguments.h), their values as YAML

  bool operator==(const TrainingArguments&) const = default;
};

// Whether what the model makes of each token is logged (log_token_metrics).
inline bool measures_tokens(const TrainingArguments& a) {
  return a.logging.token_metrics == "true" || (a.logging.token_metrics == "auto" && a.preference.stage == "dpo");
}

}  // namespace concord
