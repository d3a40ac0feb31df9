// All that a user can say about a training run: one struct, read from YAML and from the command line, checked as a
// whole, printed back as YAML that parses to the same.
//
//   const CommandLine line = parse_command_line(words);          // reads the file of --config too
//   check_arguments(line.arguments, world);                      // relations between them
//   std::cout << to_yaml(line.arguments);                        // --print_config
//
// Names are those of HF's and ROLL's TrainingArguments, and where these have none Megatron's; so are the defaults, but
// for those whose comment here says otherwise. Every name is described once, in table.cpp, from which reading,
// checking, printing and the help follow. Names that other programs have for the same are taken; names of features that
// Concord does not have are refused with what is there instead; names that change nothing here are told to the user
// (foreign.cpp). Nothing here needs libtorch or waits. Threads: plain values and pure functions, but for
// parse_command_line, which reads a file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/schedule/schedules.h"

namespace concord {

struct TrainingArguments {
  // The model: exactly one of the two.
  std::string model;         // an HF folder to start from
  std::string model_config;  // an HF config.json; weights are drawn from the seed

  // Data; see docs/data.md for the forms.
  std::string train_data;
  std::string eval_data;
  int64_t seq_length = 0;              // 0: as the data has it, else the model's max_position_embeddings
  std::string tokenizer;               // empty: the model's own; "byte" where a model starts afresh
  std::string template_name = "qwen";  // called template
  bool sequence_packing = false;
  bool shuffle = true;
  int64_t data_seed = 0;  // 0: as seed
  int64_t dataloader_prefetch_factor = 2;

  // How much.
  int64_t per_device_train_batch_size = 8;
  int64_t per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;
  int64_t global_batch_size = 0;  // above 0: check_arguments finds gradient_accumulation_steps by it
  double num_train_epochs = 3;
  int64_t max_steps = -1;  // above 0 it wins over num_train_epochs

  // The optimizer and its schedules.
  std::string optimizer = "adam";
  double learning_rate = 5e-5;
  double weight_decay = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double sgd_momentum = 0.9;
  double max_grad_norm = 1;  // 0: gradients are not clipped
  std::string lr_scheduler_type = "linear";
  std::map<std::string, std::string> lr_scheduler_kwargs;
  double min_lr = 0;
  double lr_warmup_init = 0;
  int64_t warmup_steps = 0;  // one of the three
  int64_t warmup_samples = 0;
  double warmup_ratio = 0;
  int64_t lr_decay_steps = 0;  // 0: max_steps
  int64_t lr_wsd_decay_steps = 0;
  std::string lr_wsd_decay_style = "exponential";
  int64_t lr_step_offset = 0;
  double start_weight_decay = -1;  // negative: weight_decay
  double end_weight_decay = -1;
  std::string weight_decay_incr_style = "constant";
  // The loss, and with it the gradient, is the sum over all counted tokens of the step divided by their number. ROLL's
  // default is false: the mean over the micro-batches of each one's mean, in which a token weighs more where there are
  // few.
  bool calculate_per_token_loss = true;

  // Numbers.
  bool bf16 = false;
  bool fp16 = false;      // neither: 32 bits
  double loss_scale = 0;  // of fp16; 0: dynamic
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  int64_t seed = 42;

  // How the job is split.
  int64_t tensor_model_parallel_size = 1;
  int64_t pipeline_model_parallel_size = 1;
  int64_t virtual_pipeline_model_parallel_size = 1;
  int64_t context_parallel_size = 1;
  bool sequence_parallel = false;  // with tensor_model_parallel_size 1 it is the same as false, and becomes it
  std::string order = "tp-cp-ep-dp-pp";
  std::string cp_comm_type = "p2p";
  std::string pipeline_schedule = "auto";  // auto: 1f1b, or interleaved with virtual stages
  std::string pipeline_model_parallel_layout;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  bool variable_seq_lengths = false;
  int64_t make_vocab_size_divisible_by = 128;
  int64_t ddp_timeout = 1800;

  // Recomputation.
  std::string recompute_granularity;
  std::string recompute_method = "uniform";
  int64_t recompute_num_layers = 1;
  std::vector<std::string> recompute_modules;

  // Gradients and optimizer state over the data-parallel ranks.
  bool use_distributed_optimizer = false;
  bool accumulate_allreduce_grads_in_fp32 = false;  // always so with bf16 and fp16
  bool overlap_grad_reduce = false;
  bool delay_grad_reduce = true;
  bool overlap_param_gather = false;
  bool ddp_average_in_collective = false;
  int64_t ddp_bucket_size = 0;  // elements; 0: Megatron's rule
  bool check_for_nan_in_loss_and_grad = true;
  bool optimizer_cpu_offload = false;
  double optimizer_offload_fraction = 1;
  bool log_num_zeros_in_grad = false;
  bool enable_optimizer_post_validation = true;  // of zero-bubble pipelines

  // What is said and kept. Steps below 1 are a share of all steps.
  std::string output_dir = "trainer_output";
  bool overwrite_output_dir = false;
  std::string logging_strategy = "steps";
  double logging_steps = 500;
  bool logging_first_step = false;
  bool logging_nan_inf_filter = true;
  // Data to evaluate on is evaluated on: every eval_steps where these are given, else after every epoch and at the end.
  // HF's default is no, with which nobody hears that the data was not used.
  std::string eval_strategy = "auto";
  double eval_steps = 0;  // 0: as logging_steps
  std::string save_strategy = "steps";
  double save_steps = 500;
  int64_t save_total_limit = 0;  // 0: all are kept
  bool save_only_model = true;   // HF's default is false
  int64_t exit_signal_grace = 120;
  std::vector<std::string> report_to = {"all"};
  bool disable_tqdm = false;
  double peak_flops = 0;  // of one device, in the type trained in, for MFU; 0: as the plugin knows
  double loss_floor = 0;  // the best loss there can be, where that is known; drawn in the report

  bool operator==(const TrainingArguments&) const = default;
};

// What `concord train` was called with.
struct CommandLine {
  TrainingArguments arguments;
  std::vector<std::string> given;  // names of arguments that were set, by the file or the command line
  std::string config;              // the file, where there was one
  std::vector<std::string> notes;  // what a user should hear before the run: names that change nothing here, and why
  int64_t nproc = 0;               // processes to start here; 0: this process is the job, or a part of one
  bool print_config = false;
  bool help = false;
  bool json = false;
};

// Reads |words|, the command line after "train": `--name value`, `--name=value`, `--flag`, `--no_flag`; '-' is '_' in
// names. The file of --config is read first, whatever the order, so that the command line wins; of two values on the
// command line the later one does. Throws one ConfigError with all that is wrong: unknown names with the nearest known
// one, values of the wrong type or outside of their range, names of features that are not there.
CommandLine parse_command_line(std::span<const std::string> words);

// Sets what |yaml| says in |arguments|; returns the names it sets. |file| is for messages. Throws as above, also for
// text that is not YAML, with "file:line" in front; nothing is set then. Where |file| ends in .toml, it is TOML.
std::vector<std::string> read_yaml(std::string_view yaml, const std::string& file, TrainingArguments* arguments);

// Settings that are the same as others become these (sequence_parallel of one rank), and those that others say are set
// (gradient_accumulation_steps by global_batch_size, where |world| is known). Throws one ConfigError with all
// relations that do not hold, between arguments and with the number of processes; |world| 0: not known yet.
void check_arguments(TrainingArguments* arguments, int64_t world);

// The pipeline schedule of a step; one stage is a pipeline too.
ScheduleRequest schedule_request(const TrainingArguments& arguments);

// Every argument, in groups, each with its help as a comment. read_yaml gives the same arguments back.
std::string to_yaml(const TrainingArguments& arguments);

std::string arguments_help();  // for --help

// A number of steps from one that may be a share of |total|: at least 1.
int64_t steps_of(double steps_or_ratio, int64_t total);

}  // namespace concord
