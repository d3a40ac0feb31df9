// What users of HF, LLaMA-Factory, ROLL, Megatron and torchtitan have in their files: the same settings under other
// names, settings without effect here, and features that are not supported. torchtitan's names are prefixed with their
// section.
#include <algorithm>

#include "trainer/arguments/table.h"

namespace concord {
namespace {

// Only names whose values mean the same here, in the same unit.
constexpr ArgumentAlias kAliases[] = {
    // HF and LLaMA-Factory
    {"model_name_or_path", "model"},
    {"packing", "sequence_packing"},
    {"neat_packing", "sequence_packing"},
    {"max_length", "cutoff_len"},
    {"optim", "optimizer"},
    {"evaluation_strategy", "eval_strategy"},
    {"lora_r", "lora_rank"},
    {"lora_target_modules", "lora_target"},
    {"additional_target", "modules_to_save"},
    {"rpo_alpha", "pref_ftx"},
    {"full_determinism", "deterministic_mode"},
    // Megatron
    {"lr", "learning_rate"},
    {"micro_batch_size", "per_device_train_batch_size"},
    {"train_iters", "max_steps"},
    {"data_path", "train_data"},
    {"train_data_path", "train_data"},
    {"valid_data_path", "eval_data"},
    {"valid_data_blend", "eval_data_blend"},
    {"test_data_path", "test_data"},
    {"clip_grad", "max_grad_norm"},
    {"adam_eps", "adam_epsilon"},
    {"lr_decay_style", "lr_scheduler_type"},
    {"lr_decay_iters", "lr_decay_steps"},
    {"lr_wsd_decay_iters", "lr_wsd_decay_steps"},
    {"lr_warmup_iters", "warmup_steps"},
    {"lr_warmup_samples", "warmup_samples"},
    {"lr_warmup_fraction", "warmup_ratio"},
    {"log_interval", "logging_steps"},
    {"eval_interval", "eval_steps"},
    {"save_interval", "save_steps"},
    {"save", "output_dir"},
    // torchtitan
    {"job.dump_folder", "output_dir"},
    {"metrics.log_freq", "logging_steps"},
    {"optimizer.name", "optimizer"},
    {"optimizer.lr", "learning_rate"},
    {"optimizer.eps", "adam_epsilon"},
    {"optimizer.beta1", "adam_beta1"},
    {"optimizer.beta2", "adam_beta2"},
    {"optimizer.weight_decay", "weight_decay"},
    {"lr_scheduler.warmup_steps", "warmup_steps"},
    {"lr_scheduler.decay_type", "lr_scheduler_type"},
    {"training.local_batch_size", "per_device_train_batch_size"},
    {"training.batch_size", "per_device_train_batch_size"},
    {"training.global_batch_size", "global_batch_size"},
    {"training.seq_len", "seq_length"},
    {"training.max_norm", "max_grad_norm"},
    {"training.steps", "max_steps"},
    {"training.seed", "seed"},
    {"training.dataset_path", "train_data"},
    {"parallelism.tensor_parallel_degree", "tensor_model_parallel_size"},
    {"parallelism.pipeline_parallel_degree", "pipeline_model_parallel_size"},
    {"parallelism.context_parallel_degree", "context_parallel_size"},
    {"parallelism.expert_parallel_degree", "expert_model_parallel_size"},
    {"parallelism.expert_tensor_parallel_degree", "expert_tensor_parallel_size"},
    {"checkpoint.interval", "save_steps"},
    {"validation.dataset_path", "eval_data"},
    {"validation.freq", "eval_steps"},
};

// Adam here is AdamW, as in Megatron: weight decay is decoupled from the gradient. HF's kinds differ only in the
// implementation.
constexpr ValueAlias kValueAliases[] = {
    {"optimizer", "adamw", "adam"},
    {"optimizer", "Adam", "adam"},
    {"optimizer", "AdamW", "adam"},
    {"optimizer", "adamw_hf", "adam"},
    {"optimizer", "adamw_torch", "adam"},
    {"optimizer", "adamw_torch_fused", "adam"},
    {"optimizer", "adamw_torch_npu_fused", "adam"},
    {"optimizer", "adamw_apex_fused", "adam"},
    {"optimizer", "lion_32bit", "lion"},
    {"lora_target", "all", "all-linear"},
};

std::vector<IgnoredArguments> make_ignored() {
  return {
      {"this command always trains; eval_data and eval_strategy control evaluation",
       {"do_train", "do_eval", "skip_memory_metrics"}},
      {"conversations are written by the model's own chat template, or by chat_template FILE.jinja",
       {"template", "default_system"}},
      {"samples that do not fill a whole step are always dropped", {"dataloader_drop_last"}},
      {"every update waits for the gradient norm of all ranks", {"enable_optimizer_post_validation"}},
      {"SIGTERM, SIGINT and SIGHUP always save and end the run; exit_signal_grace limits how long that may take",
       {"exit_signal_handler"}},
      {"one thread prefetches data (see dataloader_prefetch_factor); the rest depends on the device",
       {"dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_in_order",
        "dataloader_multiprocessing_context", "dataloader_type", "num_workers", "preprocessing_num_workers",
        "preprocessing_batch_size", "overwrite_cache", "dataset_num_proc", "remove_unused_columns", "label_names",
        "length_column_name", "accelerator_config", "dispatch_batches", "split_batches",
        "no_create_attention_mask_in_dataloader"}},
      {"data is tokenized before training, with `concord data build`",
       {"tokenizer_type", "tokenizer_model", "tokenizer_name", "use_fast_tokenizer", "vocab_file", "merge_file",
        "vocab_extra_ids", "trust_remote_code", "model.hf_assets_path", "model.tokenizer_path"}},
      {"metrics are always written to output_dir: metrics.jsonl, TensorBoard events in runs, report.html",
       {"logging_dir",
        "project",
        "plot_loss",
        "log_level",
        "log_level_replica",
        "log_on_each_node",
        "include_num_input_tokens_seen",
        "include_tokens_per_second",
        "include_for_metrics",
        "log_throughput",
        "log_progress",
        "log_timers_to_tensorboard",
        "log_memory_to_tensorboard",
        "log_validation_ppl_to_tensorboard",
        "log_world_size_to_tensorboard",
        "log_loss_scale_to_tensorboard",
        "log_learning_rate_to_tensorboard",
        "tensorboard_*",
        "wandb_*",
        "one_logger_*",
        "enable_one_logger",
        "trackio_*",
        "job.description",
        "job.print_args",
        "job.print_config",
        "profiling.*",
        "metrics.*",
        "comm.*"}},
      {"it affects speed only, not results; the platform decides",
       {"tf32",
        "torch_compile*",
        "torchdynamo",
        "compile.*",
        "training.compile",
        "cuda_graph_impl",
        "enable_cuda_graph",
        "use_liger_kernel",
        "liger_kernel_config",
        "enable_liger_kernel",
        "flash_attn",
        "use_flash_attn",
        "attention_backend",
        "transformer_impl",
        "use_mcore_models",
        "bias_activation_fusion",
        "bias_dropout_fusion",
        "bias_gelu_fusion",
        "bias_swiglu_fusion",
        "masked_softmax_fusion",
        "apply_rope_fusion",
        "gradient_accumulation_fusion",
        "cross_entropy_loss_fusion",
        "cross_entropy_fusion_impl",
        "no_bias_dropout_fusion",
        "no_bias_gelu_fusion",
        "no_bias_swiglu_fusion",
        "no_masked_softmax_fusion",
        "no_rope_fusion",
        "no_gradient_accumulation_fusion",
        "overlap_p2p_comm",
        "batch_p2p_comm",
        "batch_p2p_sync",
        "tp_comm_*",
        "async_tensor_model_parallel_allreduce",
        "no_async_tensor_model_parallel_allreduce",
        "deallocate_pipeline_outputs",
        "ddp_find_unused_parameters",
        "ddp_bucket_cap_mb",
        "ddp_broadcast_buffers",
        "ddp_static_graph",
        "ddp_backend",
        "distributed_backend",
        "fp16_backend",
        "fp16_opt_level",
        "half_precision_backend",
        "jit_mode_eval",
        "torch_empty_cache_steps",
        "eval_accumulation_steps",
        "empty_unused_memory_level",
        "low_cpu_mem_usage",
        "use_cache",
        "manual_gc*",
        "optimizer.implementation",
        "parallelism.enable_async_tensor_parallel",
        "parallelism.fsdp_reshard_after_forward",
        "training.gc_freq"}},
      {"launchers set it in the environment", {"local_rank", "_n_gpu", "tpu_num_cores", "tpu_metrics_debug"}},
      {"it configures a feature that is not supported or not enabled",
       {"fsdp_config",
        "fsdp_min_num_params",
        "fsdp_transformer_layer_cls_to_wrap",
        "gradient_checkpointing_kwargs",
        "hub_*",
        "push_to_hub_*",
        "batch_eval_metrics",
        "eval_do_concat_batches",
        "eval_use_gather_object",
        "include_inputs_for_metrics",
        "mp_parameters",
        "past_index",
        "ray_scope",
        "checkpoint.folder",
        "checkpoint.async_mode",
        "activation_checkpoint.*_option",
        "validation.dataset",
        "validation.steps",
        "exit_on_missing_checkpoint",
        "auto_detect_ckpt_format",
        "dist_ckpt_strictness"}},
  };
}

constexpr std::string_view kShape = "the model's shape comes from its config.json; pass that as model_config";
constexpr std::string_view kExperts =
    "of mixture-of-experts models, only moe_router_load_balancing_type, moe_aux_loss_coeff, moe_z_loss_coeff, "
    "moe_router_bias_update_rate, moe_expert_capacity_factor, moe_token_drop_policy, "
    "moe_pad_expert_input_to_capacity and moe_shared_expert_overlap can be chosen so far; "
    "expert_model_parallel_size and expert_tensor_parallel_size split experts";
constexpr std::string_view kCheckpoints =
    "resume_from_checkpoint restores everything, and --model starts a new run from weights";
constexpr std::string_view kEightBits =
    "of 8-bit formats, fp8, fp8_recipe, fp8_amax_history_len and first_last_layers_bf16 can be chosen";
constexpr std::string_view kFourBits = "quantization_bit: 4 is nf4 with double quantisation, as in bitsandbytes";
constexpr std::string_view kSharded = "set use_distributed_optimizer: true to shard optimizer state";
constexpr std::string_view kTrainData = "pass the file or prefix as train_data";
constexpr std::string_view kEvalData =
    "pass evaluation data as eval_data or eval_datasets, or take it from train_data with split";
constexpr std::string_view kAdapters =
    "of adapters, lora_rank, lora_alpha, lora_dropout, lora_target, use_rslora, use_dora, rank_pattern, alpha_pattern, "
    "modules_to_save, adapter_name_or_path, create_new_adapter and quantization_bit can be chosen";
constexpr std::string_view kRecompute = "use recompute_granularity: full or selective";

std::vector<RefusedArgument> make_refused() {
  return {
      {"moe_router_topk*", {"false"}, kExperts},
      {"moe_router_pre_softmax", {"false"}, kExperts},
      {"moe_router_score_function", {"false"}, kExperts},
      {"moe_router_num_groups", {"false"}, kExperts},
      {"moe_router_group_topk", {"false"}, kExperts},
      {"moe_router_enable_expert_bias", {"false"}, kExperts},
      {"moe_router_dtype", {"false"}, kExperts},
      {"moe_router_fusion", {"false"}, kExperts},
      {"moe_router_padding*", {"false"}, kExperts},
      {"moe_input_jitter_eps", {"false"}, kExperts},
      {"moe_pad_experts_*", {"false"}, kExperts},
      {"moe_token_dispatcher_type", {"false"}, kExperts},
      {"moe_grouped_gemm", {"false"}, kExperts},
      {"moe_permute_fusion", {"false"}, kExperts},
      {"moe_shared_expert_intermediate_size", {}, kShape},
      {"moe_shared_expert_gate", {"false"}, kShape},
      {"moe_layer_*", {"false"}, kExperts},
      {"moe_ffn_*", {"false"}, kExperts},
      {"moe_enable_*", {"false"}, kExperts},
      {"moe_use_*", {"false"}, kExperts},
      {"moe_extended_tp", {"false"}, kExperts},
      {"moe_per_layer_logging", {"false"}, kExperts},
      {"moe_deepep_*", {"false"}, kExperts},
      {"num_experts", {}, kShape},
      {"fp8_margin", {"0"}, kEightBits},
      {"fp8_interval", {"1"}, kEightBits},
      {"fp8_wgrad", {"true"}, kEightBits},
      {"fp8_amax_compute_algo", {"max", "most_recent"}, "the largest of the last fp8_amax_history_len steps counts"},
      {"fp8_param*", {"false"}, kEightBits},
      {"fp8_dot_product_attention", {"false"}, kEightBits},
      {"fp8_multi_head_attention", {"false"}, kEightBits},
      {"quantize.*", {"false"}, kEightBits},
      {"quantization_method", {"bnb"}, kFourBits},
      {"quantization_type", {"nf4"}, kFourBits},
      {"double_quantization", {"true"}, kFourBits},
      {"additional_configs", {"{}"}, "every setting has its own argument; `concord train --help` lists them"},
      {"ckpt_format", {}, kCheckpoints},
      {"restore_callback_states_from_checkpoint", {"false"}, kCheckpoints},
      {"enable_jit_checkpoint", {"false"}, kCheckpoints},
      {"load", {}, "start from an HF folder, passed as model"},
      {"no_save_optim", {"false"}, "use save_only_model: true"},
      {"no_save_rng", {"false"}, "checkpoints always have the random generators; no_load_rng: true ignores them"},
      {"save_hf_model", {"true"}, "models are always saved as an HF folder"},
      {"save_safetensors", {"true"}, "weights are always saved as safetensors"},
      {"use_checkpoint_opt_param_scheduler",
       {"false"},
       "resume with the settings in training_args.yaml of that run, or override_opt_param_scheduler: true to change "
       "them"},
      {"checkpoint.enable", {"true"}, "use save_strategy: no"},
      {"checkpoint.*", {"true"}, "an HF folder is saved every save_steps steps, in the training data type"},
      {"loraplus_lr_embedding", {"1e-06", "1e-6"}, "adapters have no layers of embeddings, which it is for; remove it"},
      {"pissa_*", {"false"}, "use init_lora_weights: pissa, or pissa_niter_16"},
      {"training.dataset", {}, kTrainData},
      {"mock_data", {"false"}, "set train_data; `concord train` without arguments generates its own data"},
      {"val_size", {"0", "0.0"}, kEvalData},
      {"eval_dataset", {}, kEvalData},
      {"validation.*", {"false"}, kEvalData},
      {"bf16_full_eval", {"false"}, "evaluation uses the training data type; use bf16"},
      {"fp16_full_eval", {"false"}, "evaluation uses the training data type; use fp16"},
      {"training.mixed_precision_param", {"float32"}, "use bf16: true or fp16: true"},
      {"training.mixed_precision_reduce", {"float32"}, "gradients are reduced in float32 with bf16 and fp16"},
      {"training.dtype", {"float32"}, "use bf16: true or fp16: true"},
      {"params_dtype", {}, "use bf16: true or fp16: true"},
      {"gradient_checkpointing", {"false"}, kRecompute},
      {"recompute_activations", {"false"}, "use recompute_granularity: selective"},
      {"distribute_saved_activations", {"false"}, "use sequence_parallel: true"},
      {"activation_checkpoint.mode", {"none"}, kRecompute},
      {"activation_checkpoint.*", {"false"}, kRecompute},
      {"num_layers_per_virtual_pipeline_stage", {}, "use virtual_pipeline_model_parallel_size (model chunks per rank)"},
      {"parallelism.pipeline_parallel_schedule", {}, "use pipeline_schedule: 1f1b, interleaved, zb-h1, zb-v or gpipe"},
      {"parallelism.data_parallel_replicate_degree", {"1", "-1"}, "the remaining ranks are data parallel"},
      {"parallelism.data_parallel_shard_degree", {"1", "-1"}, kSharded},
      {"deepspeed", {}, kSharded},
      {"fsdp*", {"", "false"}, kSharded},
      {"parallelism_config",
       {},
       "use tensor_model_parallel_size, pipeline_model_parallel_size and context_parallel_size"},
      {"auto_find_batch_size", {"false"}, "set per_device_train_batch_size"},
      {"per_gpu_train_batch_size", {}, "use per_device_train_batch_size"},
      {"per_gpu_eval_batch_size", {}, "use per_device_eval_batch_size"},
      {"group_by_length", {"false"}, "use sequence_packing: true to avoid padding"},
      {"train_sampling_strategy", {"random"}, "use shuffle: false to read the data in order"},
      {"lr_scheduler.decay_ratio", {}, "use lr_scheduler_type: wsd with lr_wsd_decay_steps"},
      {"lr_scheduler.min_lr_factor", {"0", "0.0"}, "use min_lr, an absolute learning rate"},
      {"distributed_timeout_minutes", {}, "use ddp_timeout, in seconds"},
      {"average_tokens_across_devices", {"true"}, "see calculate_per_token_loss"},
      {"optim_args", {}, "optimizer settings have their own arguments: adam_beta1, sgd_momentum, ..."},
      {"optim_target_modules", {}, "all weights use the same optimizer"},
      {"debug", {""}, "use CONCORD_LOG=debug and CONCORD_LAYERS=validate,trace"},
      {"use_cpu", {"false"}, "select the platform with CONCORD_PLATFORM=cpu"},
      {"no_cuda", {"false"}, "select the platform with CONCORD_PLATFORM=cpu"},
      {"use_mps_device", {"false"}, "`concord platforms` lists the available platforms"},
      {"use_ipex", {"false"}, "`concord platforms` lists the available platforms"},
      {"push_to_hub", {"false"}, "models are saved to a local folder; upload it with HF's own tools"},
      {"num_layers", {}, kShape},
      {"hidden_size", {}, kShape},
      {"ffn_hidden_size", {}, kShape},
      {"num_attention_heads", {}, kShape},
      {"num_query_groups", {}, kShape},
      {"group_query_attention", {}, kShape},
      {"kv_channels", {}, kShape},
      {"max_position_embeddings", {}, kShape},
      {"position_embedding_type", {}, kShape},
      {"use_rotary_position_embeddings", {}, kShape},
      {"rotary_*", {}, kShape},
      {"normalization", {}, kShape},
      {"norm_epsilon", {}, kShape},
      {"layernorm_epsilon", {}, kShape},
      {"qk_layernorm", {"false"}, kShape},
      {"swiglu", {}, kShape},
      {"gated_linear_unit", {}, kShape},
      {"activation_func", {}, kShape},
      {"add_bias_linear", {}, kShape},
      {"disable_bias_linear", {}, kShape},
      {"add_qkv_bias", {}, kShape},
      {"untie_embeddings_and_output_weights", {}, kShape},
      {"init_method_std", {}, kShape},
      {"vocab_size", {}, kShape},
      {"model.*", {}, kShape},
  };
}

bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  const std::string_view front = pattern.substr(0, star), back = pattern.substr(star + 1);
  return name.size() >= front.size() + back.size() && name.starts_with(front) && name.ends_with(back);
}

// Whether |section| is the part of |name| before its first '.'.
bool is_in_section(std::string_view name, std::string_view section) {
  return name.size() > section.size() && name.starts_with(section) && name[section.size()] == '.';
}

}  // namespace

std::span<const ArgumentAlias> argument_aliases() { return kAliases; }

std::span<const RefusedArgument> refused_arguments() {
  static const std::vector<RefusedArgument> refused = make_refused();
  return refused;
}

std::span<const IgnoredArguments> ignored_arguments() {
  static const std::vector<IgnoredArguments> ignored = make_ignored();
  return ignored;
}

const RefusedArgument* find_refused_argument(std::string_view name) {
  for (const RefusedArgument& refused : refused_arguments()) {
    if (matches(refused.name, name)) return &refused;
  }
  return nullptr;
}

const IgnoredArguments* find_ignored_argument(std::string_view name) {
  for (const IgnoredArguments& group : ignored_arguments()) {
    for (const std::string_view pattern : group.names) {
      if (matches(pattern, name)) return &group;
    }
  }
  return nullptr;
}

bool is_known_name(std::string_view name) {
  return is_program_option(name) || find_launch_argument(name) != nullptr || find_argument(name) != nullptr ||
         find_ignored_argument(name) != nullptr || find_refused_argument(name) != nullptr;
}

std::string_view canonical_value(std::string_view argument, std::string_view value) {
  for (const ValueAlias& alias : kValueAliases) {
    if (alias.argument == argument && alias.value == value) return alias.meaning;
  }
  return value;
}

std::optional<std::string> section_prefix(std::string_view name) {
  if (name == "language_model" || name == "model_parallel") return "";  // of Megatron's YAML
  bool is_one = false;
  for (const ArgumentAlias& alias : kAliases) is_one |= is_in_section(alias.name, name);
  for (const RefusedArgument& refused : refused_arguments()) is_one |= is_in_section(refused.name, name);
  for (const IgnoredArguments& group : ignored_arguments()) {
    for (const std::string_view pattern : group.names) is_one |= is_in_section(pattern, name);
  }
  return is_one ? std::optional(std::string(name) + ".") : std::nullopt;
}

}  // namespace concord
