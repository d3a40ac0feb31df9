#include "trainer/argument_table.h"

#include "trainer/nearest_name.h"

namespace concord {
namespace {

using T = TrainingArguments;

constexpr ArgumentRange at_least(double least) { return {.least = least}; }
constexpr ArgumentRange above(double least) { return {.least = least, .open_least = true}; }
constexpr ArgumentRange between(double least, double most) { return {.least = least, .most = most}; }
// So that products of a few of them can be computed with: a count of ranks or of rows, a number of steps or samples.
constexpr double kMostRanks = 1 << 20;
constexpr double kMostSteps = 1e15;
constexpr ArgumentRange below_one() { return {.least = 0, .most = 1, .open_most = true}; }

std::vector<ArgumentGroup> make_groups() {
  return {
      {"Model (one of the two)",
       {{"model", &T::model, "HF folder to start from: config.json and safetensors", {}, {}, true},
        {"model_config",
         &T::model_config,
         "HF config.json of a model to start afresh, drawn from the seed",
         {},
         {},
         true}}},
      {"Data",
       {{"train_data", &T::train_data, "Megatron prefix (.bin/.idx), .jsonl, .txt or .safetensors", {}, {}, true},
        {"eval_data", &T::eval_data, "the same, for evaluation", {}, {}, true},
        {"seq_length", &T::seq_length, "tokens of a sample; 0: as the data has it, else the model's longest",
         between(0, 1 << 30)},
        {"tokenizer",
         &T::tokenizer,
         "of text and chats: byte, a tokenizer.json or its folder; empty: the model's own, byte for a fresh model",
         {},
         {},
         true},
        {"template", &T::template_name, "how a chat becomes text", {}, {"qwen", "llama3"}},
        {"sequence_packing", &T::sequence_packing, "several short samples in one sequence, apart from each other"},
        {"shuffle", &T::shuffle, "false: samples in the order of the data"},
        {"data_seed", &T::data_seed, "of the order of samples; 0: as seed", between(0, kMostSteps)},
        {"dataloader_prefetch_factor", &T::dataloader_prefetch_factor, "steps of data prepared ahead",
         between(1, 1024)}}},
      {"How much",
       {{"per_device_train_batch_size", &T::per_device_train_batch_size, "samples of a micro-batch",
         between(1, kMostRanks)},
        {"per_device_eval_batch_size", &T::per_device_eval_batch_size, "the same in evaluation",
         between(1, kMostRanks)},
        {"gradient_accumulation_steps", &T::gradient_accumulation_steps, "micro-batches of a step",
         between(1, 1 << 20)},
        {"global_batch_size", &T::global_batch_size,
         "samples of a step over all ranks; sets gradient_accumulation_steps; 0: that says it",
         between(-1, kMostSteps)},
        {"num_train_epochs", &T::num_train_epochs, "times through the data", above(0)},
        {"max_steps", &T::max_steps, "steps; above 0 it wins over num_train_epochs", between(-1, kMostSteps)}}},
      {"Optimizer",
       {{"optimizer", &T::optimizer, "the rule of the update", {}, {"adam", "sgd"}},
        {"learning_rate", &T::learning_rate, "the largest of the schedule", at_least(0)},
        {"weight_decay", &T::weight_decay, "of parameters with two or more axes", at_least(0)},
        {"adam_beta1", &T::adam_beta1, "", below_one()},
        {"adam_beta2", &T::adam_beta2, "", below_one()},
        {"adam_epsilon", &T::adam_epsilon, "", above(0)},
        {"sgd_momentum", &T::sgd_momentum, "", below_one()},
        {"max_grad_norm", &T::max_grad_norm, "gradients are scaled down to this norm; 0: never", at_least(0)},
        {"lr_scheduler_type", &T::lr_scheduler_type, "how the learning rate changes with the steps"},
        {"lr_scheduler_kwargs", &T::lr_scheduler_kwargs, "of the schedule, say {min_lr: 1e-5}"},
        {"min_lr", &T::min_lr, "where the schedule ends", at_least(0)},
        {"lr_warmup_init", &T::lr_warmup_init, "where the warm-up begins", at_least(0)},
        {"warmup_steps", &T::warmup_steps, "steps in which the learning rate rises", between(0, kMostSteps)},
        {"warmup_samples", &T::warmup_samples, "the same in samples", between(0, kMostSteps)},
        {"warmup_ratio", &T::warmup_ratio, "the same as a share of all steps", between(0, 1)},
        {"lr_decay_steps", &T::lr_decay_steps, "where the schedule ends; 0: with the run", between(0, kMostSteps)},
        {"lr_wsd_decay_steps", &T::lr_wsd_decay_steps, "the last steps of wsd, which decay", between(0, kMostSteps)},
        {"lr_wsd_decay_style", &T::lr_wsd_decay_style, "", {}, {"linear", "cosine", "exponential", "minus_sqrt"}},
        {"lr_step_offset", &T::lr_step_offset, "1: the first update is on the slope of the warm-up already",
         between(0, 1)},
        {"start_weight_decay", &T::start_weight_decay, "of a weight decay that changes; -1: weight_decay",
         at_least(-1)},
        {"end_weight_decay", &T::end_weight_decay, "", at_least(-1)},
        {"weight_decay_incr_style", &T::weight_decay_incr_style, "", {}, {"constant", "linear", "cosine"}},
        {"calculate_per_token_loss", &T::calculate_per_token_loss,
         "every counted token of a step weighs the same; false: every micro-batch does (ROLL's default)"}}},
      {"Numbers",
       {{"bf16", &T::bf16, "compute in bfloat16, update in 32 bits"},
        {"fp16", &T::fp16, "compute in 16-bit floats with a scaled loss, update in 32 bits"},
        {"loss_scale", &T::loss_scale, "of fp16; 0: dynamic", at_least(0)},
        {"initial_loss_scale", &T::initial_loss_scale, "of the dynamic scale", above(0)},
        {"min_loss_scale", &T::min_loss_scale, "of the dynamic scale", above(0)},
        {"loss_scale_window", &T::loss_scale_window, "clean steps before the scale doubles", between(1, kMostSteps)},
        {"hysteresis", &T::hysteresis, "overflows before the scale halves", between(1, kMostSteps)},
        {"seed", &T::seed, "of weights and of all that is drawn", between(1, kMostSteps)}}},
      {"How the job is split",
       {{"tensor_model_parallel_size", &T::tensor_model_parallel_size, "ranks that share every layer",
         between(1, kMostRanks)},
        {"pipeline_model_parallel_size", &T::pipeline_model_parallel_size, "ranks that take turns in layers",
         between(1, kMostRanks)},
        {"virtual_pipeline_model_parallel_size", &T::virtual_pipeline_model_parallel_size, "runs of layers a rank",
         between(1, kMostRanks)},
        {"context_parallel_size", &T::context_parallel_size, "ranks that share every sequence", between(1, kMostRanks)},
        {"sequence_parallel", &T::sequence_parallel, "tensor-parallel ranks share norms and residuals too"},
        {"order", &T::order, "axes of the ranks, the fastest first"},
        {"cp_comm_type",
         &T::cp_comm_type,
         "how context-parallel ranks see each other's keys",
         {},
         {"p2p", "all_gather"}},
        {"pipeline_schedule",
         &T::pipeline_schedule,
         "a kind of `concord schedule`, or a file NAME.csv; auto: 1f1b, or interleaved",
         {},
         {},
         true},
        {"pipeline_model_parallel_layout", &T::pipeline_model_parallel_layout, "layers of each stage: E,t*3|t*4,L"},
        {"account_for_embedding_in_pipeline_split", &T::account_for_embedding_in_pipeline_split,
         "the embedding counts as a layer"},
        {"account_for_loss_in_pipeline_split", &T::account_for_loss_in_pipeline_split, "the loss does"},
        {"variable_seq_lengths", &T::variable_seq_lengths, "stages tell each other the length of every micro-batch"},
        {"make_vocab_size_divisible_by", &T::make_vocab_size_divisible_by, "times tp: rows of the vocabulary's tables",
         between(1, 1 << 20)},
        {"ddp_timeout", &T::ddp_timeout, "seconds after which a rank that waits gives up", between(1, 1e9)}}},
      {"Recomputation",
       {{"recompute_granularity",
         &T::recompute_granularity,
         "what is computed again instead of kept",
         {},
         {"", "full", "selective"}},
        {"recompute_method", &T::recompute_method, "of full", {}, {"uniform", "block"}},
        {"recompute_num_layers", &T::recompute_num_layers, "of full: layers of a unit, or layers at all (block)",
         between(1, kMostSteps)},
        {"recompute_modules",
         &T::recompute_modules,
         "of selective; none: core_attn",
         {},
         {"core_attn", "mlp", "layernorm"}}}},
      {"Gradients and optimizer state over the data-parallel ranks",
       {{"use_distributed_optimizer", &T::use_distributed_optimizer, "each rank keeps a share of the state (ZeRO-1)"},
        {"accumulate_allreduce_grads_in_fp32", &T::accumulate_allreduce_grads_in_fp32,
         "gradients in 32 bits; always so with bf16 and fp16"},
        {"overlap_grad_reduce", &T::overlap_grad_reduce, "reduce beside the backward pass, bucket by bucket"},
        {"delay_grad_reduce", &T::delay_grad_reduce, "pipelines: reduce a stage when all of it is there"},
        {"overlap_param_gather", &T::overlap_param_gather, "gather updated weights beside the next forward pass"},
        {"ddp_average_in_collective", &T::ddp_average_in_collective, "the collective divides, not a scale before it"},
        {"ddp_bucket_size", &T::ddp_bucket_size, "elements of a bucket; 0: Megatron's rule", between(0, kMostSteps)},
        {"check_for_nan_in_loss_and_grad", &T::check_for_nan_in_loss_and_grad,
         "end where a loss or gradient is NaN or Inf; false: skip such steps"},
        {"optimizer_cpu_offload", &T::optimizer_cpu_offload, "optimizer state in the host's memory"},
        {"optimizer_offload_fraction", &T::optimizer_offload_fraction, "which share of it", between(0, 1)},
        {"log_num_zeros_in_grad", &T::log_num_zeros_in_grad, "counts the elements that are 0"},
        {"enable_optimizer_post_validation", &T::enable_optimizer_post_validation,
         "zb kinds: the next step begins before this one's gradient norm is known; a step that was wrong is taken "
         "back; "
         "costs a copy of weights and moments (12 bytes an element of this rank); not with fp16"}}},
      {"What is said and kept (steps below 1 are a share of all steps)",
       {{"output_dir", &T::output_dir, "where everything goes"},
        {"overwrite_output_dir", &T::overwrite_output_dir, "also where it holds another run, which is lost"},
        {"logging_strategy", &T::logging_strategy, "", {}, {"no", "steps", "epoch"}},
        {"logging_steps", StepsMember{&T::logging_steps}, "", above(0)},
        {"logging_first_step", &T::logging_first_step, ""},
        {"logging_nan_inf_filter", &T::logging_nan_inf_filter, "NaN and Inf losses are excluded from the logged mean"},
        {"eval_strategy",
         &T::eval_strategy,
         "auto: with eval_data steps where eval_steps are given, else epoch",
         {},
         {"auto", "no", "steps", "epoch"}},
        {"eval_steps", StepsMember{&T::eval_steps}, "0: as logging_steps", at_least(0)},
        {"save_strategy", &T::save_strategy, "", {}, {"no", "steps", "epoch"}},
        {"save_steps", StepsMember{&T::save_steps}, "", above(0)},
        {"save_total_limit", &T::save_total_limit, "older ones are removed; 0: none is", between(0, kMostSteps)},
        {"save_only_model", &T::save_only_model, "the HF folder, without the optimizer's state"},
        {"exit_signal_grace", &T::exit_signal_grace,
         "seconds after SIGTERM, SIGINT or SIGHUP in which a run saves and ends; then it ends without saving",
         between(1, 1e6)},
        {"report_to", &T::report_to, "besides metrics.jsonl", {}, {"all", "none", "tensorboard", "html"}},
        {"disable_tqdm", &T::disable_tqdm, "plain lines on a terminal too"},
        {"peak_flops", &T::peak_flops, "FLOP/s of a device in the type trained in, for MFU; 0: as the plugin knows",
         at_least(0)},
        {"loss_floor", &T::loss_floor, "the best loss there can be, where that is known; 0: not known", at_least(0)}}},
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
      const std::string& path = arguments.*std::get<std::string TrainingArguments::*>(argument.member);
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
