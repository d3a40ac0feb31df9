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
#include "trainer/arguments/objective_arguments.h"
#include "trainer/arguments/run_arguments.h"
#include "trainer/data/arguments.h"

namespace concord {

// A data set of LLaMA-Factory's, instead of a path (trainer/data/text/dataset_info.h), and the field of other records.
struct DatasetArguments {
  std::string name;       // dataset; empty: none
  std::string eval_name;  // eval_dataset; empty: none
  std::string dir = "data";
  std::string text_field = "text";  // dataset_text_field, of files that are given by their paths
  bool operator==(const DatasetArguments&) const = default;
};

// How large the steps are and how many of them there are.
inline constexpr const char* kAutomaticSplit = "auto";  // value of heterogeneous_split

struct StepArguments {
  int64_t global_batch_size = 0;  // above 0: resolve_arguments sets gradient_accumulation_steps by it
  double num_train_epochs = 3;
  int64_t max_steps = -1;                      // above 0 it wins over num_train_epochs
  int64_t train_samples = 0;                   // above 0 the length of the run in samples instead of max_steps
  bool decrease_batch_size = false;            // decrease_batch_size_if_needed
  std::vector<std::string> rampup_batch_size;  // the first global batch size, its increment, samples until the full one
  std::vector<std::string> iterations_to_skip;  // numbers of steps, counted from 1
  int64_t exit_interval = 0;                    // 0: here and below, not
  double exit_duration_in_mins = 0;
  std::string heterogeneous_split;  // auto, or relative speeds of parts of the replicas; empty: equal numbers of rows
  bool has_length() const { return max_steps > 0 || train_samples > 0; }  // else num_train_epochs says it
  bool operator==(const StepArguments&) const = default;
};

// The type in which gradients of 16-bit weights are added and reduced.
enum class MainGradsType { fp32, bf16 };
template <>
inline constexpr std::string_view kEnumNames<MainGradsType>[] = {"fp32", "bf16"};
// Micro-batches whose gradients may be added in bf16. Rounding a sum is an error of up to 2^-9 of it, which for the
// last of n equal summands is n 2^-9 of the summand: 3 % at 16.
inline constexpr int64_t kMaxBf16Additions = 16;

struct PrecisionArguments {
  bool bf16 = false;
  bool fp16 = false;  // neither: 32 bits
  bool check_for_nan_in_loss_and_grad = true;
  MainGradsType main_grads_dtype = MainGradsType::fp32;

  // With fp16 a loss or gradient that is not finite is a step to be skipped, and the scale is halved.
  bool stops_on_not_finite() const { return check_for_nan_in_loss_and_grad && !fp16; }
  bool operator==(const PrecisionArguments&) const = default;
};

struct PipelineArguments {
  std::string schedule = "auto";  // auto: 1f1b, or interleaved with virtual stages
  std::string layout;             // pipeline_model_parallel_layout; empty: according to |deal|
  LayerAssignment deal;           // sizes and placement are the schedule's
  ExecutorOptions executor;
  bool replay_steps = true;
  bool operator==(const PipelineArguments&) const = default;
};

// All arguments, by concern. A concern that core has a struct for uses that struct; the plan (trainer/plan.h) or
// trainer/build.h fills in fields that no argument sets.
struct TrainingArguments {
  ModelSource model;
  FinetuningArguments finetuning;
  PreferenceArguments preference;
  DatasetArguments dataset;
  // cache: empty is the default, "none" disables it. tokenizer: empty is the model's own, "byte" for a new model.
  // seq_length: 0 is the length found in the data, else max_position_embeddings. seed: 0 is the job's.
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
  // accumulate_allreduce_grads_in_fp32: with bf16 and fp16 it follows main_grads_dtype. calculate_per_token_loss: the
  // loss is the mean over all counted tokens of the step. ROLL's default is false: the mean over the micro-batches of
  // their means, in which tokens of a micro-batch with few tokens weigh more.
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
  std::map<std::string, std::string> extra;  // values of a program's own arguments (extra_arguments.h), as YAML
  bool check_memory = true;                  // refuse a run that cannot fit, before anything is allocated
  bool has_datasets = false;                 // the program provides the data, so no setting has to name any

  bool operator==(const TrainingArguments&) const = default;
};

// Returns whether log_token_metrics is on.
inline bool measures_tokens(const TrainingArguments& a) {
  return is_on(a.logging.token_metrics, a.preference.stage == TrainingStage::dpo);
}

}  // namespace concord
