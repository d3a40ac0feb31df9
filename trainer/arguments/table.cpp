#include "trainer/arguments/table.h"

#include <type_traits>
#include <utility>

#include "core/nearest_name.h"

namespace concord {
namespace {

using T = TrainingArguments;

// field<&T::optimizer, &OptimizerOptions::adam_beta1> is where arguments.optimizer.adam_beta1 lies.
template <auto member, auto... rest, class Object>
constexpr auto& follow(Object& object) {
  if constexpr (sizeof...(rest) == 0) {
    return object.*member;
  } else {
    return follow<rest...>(object.*member);
  }
}
template <auto... path>
using FieldValue = std::remove_reference_t<decltype(follow<path...>(std::declval<T&>()))>;
template <auto... path>
constexpr ArgumentField<FieldValue<path...>> field = {
    [](T& arguments) -> FieldValue<path...>& { return follow<path...>(arguments); },
    [](const T& arguments) -> const FieldValue<path...>& { return follow<path...>(arguments); }};

constexpr ArgumentRange at_least(double least) { return {.least = least}; }
constexpr ArgumentRange above(double least) { return {.least = least, .open_least = true}; }
constexpr ArgumentRange between(double least, double most) { return {.least = least, .most = most}; }
// Upper bounds that keep products of a few such values in range: counts of ranks or rows, numbers of steps or samples.
constexpr double kMostRanks = 1 << 20;
constexpr double kMostSteps = 1e15;
constexpr ArgumentRange below_one() { return {.least = 0, .most = 1, .open_most = true}; }

std::vector<ArgumentGroup> make_groups() {
  return {
      {"Model (give exactly one)",
       {{"model",
         field<&T::model, &ModelSource::path>,
         "HF folder to start from: config.json and safetensors",
         {},
         {},
         true},
        {"model_config",
         field<&T::model, &ModelSource::config>,
         "HF config.json of a new model, initialized from the seed",
         {},
         {},
         true}}},
      {"Data",
       {{"train_data",
         field<&T::data, &DataArguments::path>,
         "Megatron prefix (.bin/.idx), .jsonl, .txt or .safetensors",
         {},
         {},
         true},
        {"eval_data",
         field<&T::evaluation, &EvaluationArguments::data>,
         "same formats as train_data, used for evaluation",
         {},
         {},
         true},
        {"seq_length", field<&T::data, &DataArguments::seq_length>,
         "tokens per sample; 0: the length found in the data, else the model's max_position_embeddings",
         between(0, 1 << 30)},
        {"tokenizer",
         field<&T::data, &DataArguments::tokenizer>,
         "tokenizer for text and chat data: byte, a tokenizer.json or its folder; empty: the model's own (byte with "
         "model_config)",
         {},
         {},
         true},
        {"template", field<&T::data, &DataArguments::chat_template>, "chat template", {}, {"qwen", "llama3"}},
        {"sequence_packing", field<&T::data, &DataArguments::packing>,
         "pack short samples into one sequence; samples do not attend to each other"},
        {"shuffle", field<&T::data, &DataArguments::shuffle>, "false: read samples in file order"},
        {"data_seed", field<&T::data, &DataArguments::seed>, "seed of the sample order; 0: same as seed",
         between(0, kMostSteps)},
        {"dataloader_prefetch_factor", field<&T::data, &DataArguments::prefetch>,
         "number of steps of data to prepare in advance", between(1, 1024)}}},
      {"Batch size and duration",
       {{"per_device_train_batch_size", field<&T::data, &DataArguments::micro_batch_size>, "samples per micro-batch",
         between(1, kMostRanks)},
        {"per_device_eval_batch_size", field<&T::evaluation, &EvaluationArguments::batch_size>,
         "samples per micro-batch in evaluation", between(1, kMostRanks)},
        {"gradient_accumulation_steps", field<&T::data, &DataArguments::accumulation>, "micro-batches per step",
         between(1, 1 << 20)},
        {"global_batch_size", field<&T::steps, &StepArguments::global_batch_size>,
         "samples per step over all ranks; sets gradient_accumulation_steps; 0: computed from "
         "gradient_accumulation_steps",
         between(-1, kMostSteps)},
        {"num_train_epochs", field<&T::steps, &StepArguments::num_train_epochs>, "number of passes over the data",
         above(0)},
        {"max_steps", field<&T::steps, &StepArguments::max_steps>,
         "number of steps; if > 0, overrides num_train_epochs", between(-1, kMostSteps)}}},
      {"Optimizer",
       {{"optimizer", field<&T::optimizer, &OptimizerOptions::optimizer>, "update rule", {}, {"adam", "sgd"}},
        {"learning_rate", field<&T::lr, &LrArguments::learning_rate>, "peak learning rate of the schedule",
         at_least(0)},
        {"weight_decay", field<&T::lr, &LrArguments::weight_decay>, "applied to parameters with two or more dimensions",
         at_least(0)},
        {"adam_beta1", field<&T::optimizer, &OptimizerOptions::adam_beta1>, "", below_one()},
        {"adam_beta2", field<&T::optimizer, &OptimizerOptions::adam_beta2>, "", below_one()},
        {"adam_epsilon", field<&T::optimizer, &OptimizerOptions::adam_epsilon>, "", above(0)},
        {"sgd_momentum", field<&T::optimizer, &OptimizerOptions::sgd_momentum>, "", below_one()},
        {"max_grad_norm", field<&T::optimizer, &OptimizerOptions::max_grad_norm>,
         "clip gradients to this norm; 0: no clipping", at_least(0)},
        {"lr_scheduler_type", field<&T::lr, &LrArguments::lr_scheduler_type>, "learning rate schedule"},
        {"lr_scheduler_kwargs", field<&T::lr, &LrArguments::lr_scheduler_kwargs>,
         "options of the schedule, e.g. {min_lr: 1e-5}"},
        {"min_lr", field<&T::lr, &LrArguments::min_lr>, "final learning rate of the schedule", at_least(0)},
        {"lr_warmup_init", field<&T::lr, &LrArguments::lr_warmup_init>, "learning rate at the start of warmup",
         at_least(0)},
        {"warmup_steps", field<&T::lr, &LrArguments::warmup_steps>, "number of warmup steps", between(0, kMostSteps)},
        {"warmup_samples", field<&T::lr, &LrArguments::warmup_samples>, "warmup length in samples",
         between(0, kMostSteps)},
        {"warmup_ratio", field<&T::lr, &LrArguments::warmup_ratio>, "warmup length as a fraction of all steps",
         between(0, 1)},
        {"lr_decay_steps", field<&T::lr, &LrArguments::lr_decay_steps>,
         "step at which the schedule ends; 0: at the end of the run", between(0, kMostSteps)},
        {"lr_wsd_decay_steps", field<&T::lr, &LrArguments::lr_wsd_decay_steps>,
         "number of decay steps at the end of the wsd schedule", between(0, kMostSteps)},
        {"lr_wsd_decay_style",
         field<&T::lr, &LrArguments::lr_wsd_decay_style>,
         "",
         {},
         {"linear", "cosine", "exponential", "minus_sqrt"}},
        {"lr_step_offset", field<&T::lr, &LrArguments::lr_step_offset>,
         "1: the first update already uses the learning rate of warmup step 1", between(0, 1)},
        {"start_weight_decay", field<&T::lr, &LrArguments::start_weight_decay>,
         "initial value of a weight decay schedule; -1: weight_decay", at_least(-1)},
        {"end_weight_decay", field<&T::lr, &LrArguments::end_weight_decay>,
         "final value of a weight decay schedule; -1: weight_decay", at_least(-1)},
        {"weight_decay_incr_style",
         field<&T::lr, &LrArguments::weight_decay_incr_style>,
         "",
         {},
         {"constant", "linear", "cosine"}},
        {"calculate_per_token_loss", field<&T::data_parallel, &DataParallelOptions::calculate_per_token_loss>,
         "weight all tokens of a step equally; false: weight all micro-batches equally (ROLL's default)"}}},
      {"Precision and seed",
       {{"bf16", field<&T::precision, &PrecisionArguments::bf16>, "compute in bfloat16, update in float32"},
        {"fp16", field<&T::precision, &PrecisionArguments::fp16>,
         "compute in float16 with loss scaling, update in float32"},
        {"loss_scale", field<&T::loss_scaler, &LossScalerSettings::constant>, "static loss scale for fp16; 0: dynamic",
         at_least(0)},
        {"initial_loss_scale", field<&T::loss_scaler, &LossScalerSettings::initial_scale>,
         "initial value of the dynamic loss scale", above(0)},
        {"min_loss_scale", field<&T::loss_scaler, &LossScalerSettings::min_scale>,
         "lower bound of the dynamic loss scale", above(0)},
        {"loss_scale_window", field<&T::loss_scaler, &LossScalerSettings::growth_interval>,
         "steps without overflow before the loss scale doubles", between(1, kMostSteps)},
        {"hysteresis", field<&T::loss_scaler, &LossScalerSettings::hysteresis>,
         "overflows before the loss scale is halved", between(1, kMostSteps)},
        {"seed", field<&T::job, &InitializeArgs::seed>,
         "random seed for weight initialization and everything else random", between(1, kMostSteps)}}},
      {"Parallelism",
       {{"tensor_model_parallel_size", field<&T::job, &InitializeArgs::tensor_model_parallel_size>,
         "ranks that each layer is split over", between(1, kMostRanks)},
        {"pipeline_model_parallel_size", field<&T::job, &InitializeArgs::pipeline_model_parallel_size>,
         "number of pipeline stages", between(1, kMostRanks)},
        {"virtual_pipeline_model_parallel_size", field<&T::job, &InitializeArgs::virtual_pipeline_model_parallel_size>,
         "model chunks per pipeline rank (interleaved schedules)", between(1, kMostRanks)},
        {"context_parallel_size", field<&T::job, &InitializeArgs::context_parallel_size>,
         "ranks that each sequence is split over", between(1, kMostRanks)},
        {"sequence_parallel", field<&T::model_options, &ModelOptions::sequence_parallel>,
         "also split norms and residuals over the tensor-parallel ranks"},
        {"order", field<&T::job, &InitializeArgs::order>, "order of the mesh axes, fastest-varying first"},
        {"cp_comm_type",
         field<&T::model_options, &ModelOptions::cp_comm_type>,
         "how context-parallel ranks exchange keys and values",
         {},
         {"p2p", "all_gather"}},
        {"pipeline_schedule",
         field<&T::pipeline, &PipelineArguments::schedule>,
         "a kind from `concord schedule`, or a file NAME.csv; auto: 1f1b, or interleaved with virtual stages",
         {},
         {},
         true},
        {"pipeline_model_parallel_layout", field<&T::pipeline, &PipelineArguments::layout>,
         "layers of each stage, e.g. E,t*3|t*4,L"},
        {"account_for_embedding_in_pipeline_split",
         field<&T::pipeline, &PipelineArguments::deal, &LayerDeal::account_for_embedding_in_pipeline_split>,
         "count the embedding as a layer"},
        {"account_for_loss_in_pipeline_split",
         field<&T::pipeline, &PipelineArguments::deal, &LayerDeal::account_for_loss_in_pipeline_split>,
         "count the loss as a layer"},
        {"variable_seq_lengths",
         field<&T::pipeline, &PipelineArguments::executor, &ExecutorOptions::variable_seq_lengths>,
         "stages exchange the sequence length of each micro-batch"},
        {"make_vocab_size_divisible_by", field<&T::model_options, &ModelOptions::make_vocab_size_divisible_by>,
         "pad the vocabulary to a multiple of this times tensor_model_parallel_size", between(1, 1 << 20)},
        {"ddp_timeout", field<&T::job, &InitializeArgs::ddp_timeout>, "timeout in seconds for a rank waiting on others",
         between(1, 1e9)}}},
      {"Recomputation",
       {{"recompute_granularity",
         field<&T::model_options, &ModelOptions::recompute, &RecomputeArgs::granularity>,
         "recompute activations in the backward pass: full layers, or selected modules; empty: off",
         {},
         {"", "full", "selective"}},
        {"recompute_method",
         field<&T::model_options, &ModelOptions::recompute, &RecomputeArgs::method>,
         "for full: recompute units over all layers, or only the first layers of each stage",
         {},
         {"uniform", "block"}},
        {"recompute_num_layers", field<&T::model_options, &ModelOptions::recompute, &RecomputeArgs::num_layers>,
         "for full: layers per unit (uniform), or number of layers recomputed (block)", between(1, kMostSteps)},
        {"recompute_modules",
         field<&T::model_options, &ModelOptions::recompute, &RecomputeArgs::modules>,
         "for selective; default: core_attn",
         {},
         {"core_attn", "mlp", "layernorm"}}}},
      {"Mixture of experts",
       {{"moe_router_load_balancing_type",
         field<&T::model_options, &ModelOptions::moe, &MoeArgs::router_load_balancing_type>,
         "loss that spreads tokens over experts: per layer, per layer and sequence, or over all layers as in "
         "transformers; empty: pooled_aux_loss if config.json has output_router_logits, else aux_loss",
         {},
         {"", "aux_loss", "seq_aux_loss", "pooled_aux_loss", "none"}},
        {"moe_aux_loss_coeff", field<&T::model_options, &ModelOptions::moe, &MoeArgs::aux_loss_coeff>,
         "coefficient of that loss; 0: none, for pooled_aux_loss router_aux_loss_coef of config.json", at_least(0)},
        {"moe_z_loss_coeff", field<&T::model_options, &ModelOptions::moe, &MoeArgs::z_loss_coeff>,
         "coefficient of the mean squared logsumexp of router logits; 0: none", at_least(0)}}},
      {"Data parallelism: gradients and optimizer state",
       {{"use_distributed_optimizer", field<&T::data_parallel, &DataParallelOptions::use_distributed_optimizer>,
         "shard optimizer state over the data-parallel ranks (ZeRO-1)"},
        {"accumulate_allreduce_grads_in_fp32",
         field<&T::data_parallel, &DataParallelOptions::accumulate_allreduce_grads_in_fp32>,
         "accumulate gradients in float32; always on with bf16 and fp16"},
        {"overlap_grad_reduce", field<&T::data_parallel, &DataParallelOptions::overlap_grad_reduce>,
         "overlap gradient reduction with the backward pass, bucket by bucket"},
        {"delay_grad_reduce", field<&T::data_parallel, &DataParallelOptions::delay_grad_reduce>,
         "pipeline parallelism: reduce a stage only once all its gradients are ready"},
        {"overlap_param_gather", field<&T::data_parallel, &DataParallelOptions::overlap_param_gather>,
         "overlap the gathering of updated weights with the next forward pass"},
        {"ddp_average_in_collective", field<&T::data_parallel, &DataParallelOptions::ddp_average_in_collective>,
         "average in the collective instead of scaling gradients before it"},
        {"ddp_bucket_size", field<&T::data_parallel, &DataParallelOptions::ddp_bucket_size>,
         "elements per bucket; 0: Megatron's rule", between(0, kMostSteps)},
        {"check_for_nan_in_loss_and_grad", field<&T::precision, &PrecisionArguments::check_for_nan_in_loss_and_grad>,
         "stop on a NaN or Inf loss or gradient; false: skip such steps"},
        {"optimizer_cpu_offload", field<&T::optimizer, &OptimizerOptions::optimizer_cpu_offload>,
         "keep optimizer state in host memory"},
        {"optimizer_offload_fraction", field<&T::optimizer, &OptimizerOptions::optimizer_offload_fraction>,
         "fraction of the optimizer state to offload", between(0, 1)},
        {"log_num_zeros_in_grad", field<&T::optimizer, &OptimizerOptions::log_num_zeros_in_grad>,
         "log the number of zero gradient elements"}}},
      {"Wrong numbers (docs/faults.md)",
       {{"check_replicas_steps", field<&T::faults, &FaultArguments::check_replicas_steps>,
         "compare checksums of what several ranks hold every so many steps, and before every checkpoint; 0: never",
         between(0, kMostSteps)},
        {"on_replica_mismatch",
         field<&T::faults, &FaultArguments::on_replica_mismatch>,
         "if they differ: stop the run, or warn and go on",
         {},
         {"stop", "warn"}},
        {"rerun_mode",
         field<&T::faults, &FaultArguments::rerun_mode>,
         "validate: compute a step again if its loss or gradient is NaN, Inf or a spike, on the same and on other "
         "ranks, "
         "to tell a faulty device from the data",
         {},
         {"validate", "disabled"}},
        {"rerun_action",
         field<&T::faults, &FaultArguments::rerun_action>,
         "after that: continue if the second result can be used, else stop; skip the update; or always stop",
         {},
         {"continue", "skip", "stop"}},
        {"spike_factor", field<&T::faults, &FaultArguments::spike_factor>,
         "a loss or gradient norm above this many times the median of the last 100 steps is a spike; 0: no such check",
         at_least(0)}}},
      {"Logging, evaluation and checkpoints (steps below 1 are a fraction of all steps)",
       {{"output_dir", field<&T::output, &OutputArguments::dir>, "output folder for checkpoints, metrics and reports"},
        {"overwrite_output_dir", field<&T::output, &OutputArguments::overwrite>,
         "allow an output_dir that holds another run, and delete that run"},
        {"logging_strategy", field<&T::logging, &LoggingArguments::strategy>, "", {}, {"no", "steps", "epoch"}},
        {"logging_steps", StepsField{field<&T::logging, &LoggingArguments::steps>}, "", above(0)},
        {"logging_first_step", field<&T::logging, &LoggingArguments::first_step>, ""},
        {"logging_nan_inf_filter", field<&T::logging, &LoggingArguments::nan_inf_filter>,
         "NaN and Inf losses are excluded from the logged mean"},
        {"eval_strategy",
         field<&T::evaluation, &EvaluationArguments::strategy>,
         "auto: no without eval_data; with it, steps if eval_steps is set, else epoch",
         {},
         {"auto", "no", "steps", "epoch"}},
        {"eval_steps", StepsField{field<&T::evaluation, &EvaluationArguments::steps>}, "0: same as logging_steps",
         at_least(0)},
        {"save_strategy", field<&T::saving, &SavingArguments::strategy>, "", {}, {"no", "steps", "epoch"}},
        {"save_steps", StepsField{field<&T::saving, &SavingArguments::steps>}, "", above(0)},
        {"save_total_limit", field<&T::saving, &SavingArguments::total_limit>,
         "number of checkpoints to keep, oldest are deleted first; 0: keep all", between(0, kMostSteps)},
        {"save_only_model", field<&T::saving, &SavingArguments::only_model>,
         "save checkpoints without optimizer state; runs cannot be resumed from them"},
        {"async_save", field<&T::saving, &SavingArguments::async>,
         "training goes on while a checkpoint is written; the last one is waited for"},
        {"async_save_when_busy",
         field<&T::saving, &SavingArguments::when_busy>,
         "if the checkpoint before is still being written: wait for it, or skip this one",
         {},
         {"wait", "skip"}},
        {"save_memory_limit", field<&T::saving, &SavingArguments::memory_limit>,
         "GiB of host memory per rank for copies of what async_save writes; 0: the larger of 1 GiB and twice the "
         "largest shard",
         between(0, 1e6)},
        {"resume_from_checkpoint", field<&T::saving, &SavingArguments::resume_from>,
         "continue a run: true or latest for the newest checkpoint in output_dir, or the folder of a checkpoint"},
        {"finetune", field<&T::resume, &ResumeArguments::finetune>,
         "resume_from_checkpoint: take the weights only and start a new run at step 0"},
        {"no_load_optim", field<&T::resume, &ResumeArguments::no_load_optim>,
         "resume_from_checkpoint: start with fresh optimizer state and at the beginning of the learning rate schedule"},
        {"no_load_rng", field<&T::resume, &ResumeArguments::no_load_rng>,
         "resume_from_checkpoint: start the random generators from the seed"},
        {"ignore_data_skip", field<&T::resume, &ResumeArguments::ignore_data_skip>,
         "resume_from_checkpoint: start at the beginning of the data"},
        {"override_opt_param_scheduler", field<&T::resume, &ResumeArguments::override_opt_param_scheduler>,
         "resume_from_checkpoint: allow other learning rate and weight decay settings than the checkpoint's"},
        {"max_restarts", field<&T::recovery, &RecoveryArguments::max_restarts>,
         "with --nproc: how many times in a row, without a new checkpoint in between, a job that fails or hangs is "
         "started again",
         between(0, 1e6)},
        {"memory_checkpoint_steps", field<&T::recovery, &RecoveryArguments::memory_steps>,
         "with max_restarts: keep a complete checkpoint in memory every N steps, from which a restart goes on; 0: none",
         between(0, kMostSteps)},
        {"allow_fewer_ranks", field<&T::recovery, &RecoveryArguments::allow_fewer_ranks>,
         "with max_restarts: go on with fewer data-parallel ranks and the same global batch when a device is at fault "
         "or a machine does not come back; results then differ in the last bits"},
        {"rejoin_timeout", field<&T::recovery, &RecoveryArguments::rejoin_timeout>,
         "with max_restarts and --nnodes: seconds in which the launcher of a lost machine may be started again",
         between(0, 1e6)},
        {"load_best_model_at_end", field<&T::best_model, &BestModelArguments::load_at_end>,
         "save the checkpoint with the best evaluation as the final model"},
        {"metric_for_best_model",
         field<&T::best_model, &BestModelArguments::metric>,
         "what is compared; default with load_best_model_at_end: loss",
         {},
         {"", "loss", "eval_loss", "perplexity", "eval_perplexity"}},
        {"greater_is_better",
         field<&T::best_model, &BestModelArguments::greater_is_better>,
         "auto: false, as loss and perplexity are better when lower",
         {},
         {"auto", "true", "false"}},
        {"verify_checkpoint", field<&T::saving, &SavingArguments::verify>,
         "compare a checkpoint with its checksums before resuming from it; the ranks divide the bytes"},
        {"exit_signal_grace", field<&T::saving, &SavingArguments::exit_signal_grace>,
         "seconds a run may take to save and exit after SIGTERM, SIGINT or SIGHUP; after that it exits without saving",
         between(1, 1e6)},
        {"report_to",
         field<&T::report, &ReportArguments::to>,
         "reports to write in addition to metrics.jsonl",
         {},
         {"all", "none", "tensorboard", "html"}},
        {"disable_tqdm", field<&T::report, &ReportArguments::disable_tqdm>,
         "print plain lines instead of a progress bar"},
        {"peak_flops", field<&T::report, &ReportArguments::peak_flops>,
         "peak FLOP/s of one device in the training data type, for MFU; 0: the plugin's value", at_least(0)},
        {"straggler_action",
         field<&T::report, &ReportArguments::straggler_action>,
         "for a rank at least 10 % slower than its peers: warn with the rank and the cause, or none",
         {},
         {"warn", "none"}},
        {"loss_floor", field<&T::report, &ReportArguments::loss_floor>,
         "lowest achievable loss, if known; drawn in the report; 0: unknown", at_least(0)}}},
  };
}

}  // namespace

std::span<const ArgumentGroup> argument_groups() {
  static const std::vector<ArgumentGroup> groups = make_groups();
  return groups;
}

const Argument* find_argument(std::string_view name) {
  for (const ArgumentAlias& alias : argument_aliases()) {
    if (alias.name == name) name = alias.argument;
  }
  for (const ArgumentGroup& group : argument_groups()) {
    for (const Argument& argument : group.arguments) {
      if (argument.name == name) return &argument;
    }
  }
  return nullptr;
}

std::vector<std::string> input_paths(const TrainingArguments& arguments) {
  std::vector<std::string> paths;
  for (const ArgumentGroup& group : argument_groups()) {
    for (const Argument& argument : group.arguments) {
      if (!argument.is_input) continue;
      const std::string& path = std::get<ArgumentField<std::string>>(argument.member)(arguments);
      if (!path.empty()) paths.push_back(path);
    }
  }
  return paths;
}

std::string nearest_argument(std::string_view name) {
  std::vector<std::string_view> known;
  for (const ArgumentGroup& group : argument_groups()) {
    for (const Argument& argument : group.arguments) known.push_back(argument.name);
  }
  return nearest_name(name, known);
}

}  // namespace concord
