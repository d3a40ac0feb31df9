// Megatron-LM's arguments, of pretrain_gpt.py and its examples. Those of the model are described by
// model_description.cpp.
#include "trainer/arguments/foreign/conversions.h"
#include "trainer/arguments/foreign/rows.h"

namespace concord {
namespace {

constexpr std::string_view kReader =
    "one thread prefetches data (see dataloader_prefetch_factor); the rest depends on the device";
constexpr std::string_view kExperts =
    "tokens are sent to their experts as the platform does it best; results are the same";
constexpr std::string_view kCheckpoints = "checkpoints have one format, which every layout reads (docs/checkpoints.md)";
constexpr std::string_view kExact = "sums are in fp32, which is more exact";
constexpr std::string_view kInference = "it is for inference; `concord generate` has its own arguments";
constexpr std::string_view kRollouts = "there is no reinforcement learning with rollouts";
constexpr std::string_view kEightBits =
    "of 8-bit formats, fp8, fp8_recipe, fp8_amax_history_len and first_last_layers_bf16 can be chosen";

void add_megatron_names(ForeignRows& rows) {
  rows.same({{"lr", "learning_rate"},
             {"micro_batch_size", "per_device_train_batch_size"},
             {"train_iters", "max_steps"},
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
             {"valid_data_blend", "eval_data_blend"},
             {"fp8_format", "fp8"},
             {"wandb_exp_name", "run_name"}});
}

void add_megatron_converted(ForeignRows& rows) {
  rows.convert("data_path", {"train_data; several, with weights: train_data_blend", weighted_paths}, true)
      .convert("train_data_path", {"train_data; several, with weights: train_data_blend", weighted_paths}, true)
      .convert("valid_data_path", {"eval_data; several, with weights: eval_data_blend", weighted_eval_paths}, true)
      .convert("test_data_path", {"test_data; several, with weights: test_data_blend", weighted_test_paths}, true)
      .convert("recompute_activations", {"recompute_granularity: selective", selective_recomputation})
      .convert("moe_layer_recompute",
               {"recompute_granularity: selective with recompute_modules: moe", expert_recomputation})
      .convert("load",
               {"resume_from_checkpoint: latest, if it is the folder of save; an HF folder: model", load_folder})
      .convert("pretrained_checkpoint", {"model, if it is an HF folder", load_folder})
      .convert("distributed_timeout_minutes", {"ddp_timeout, in seconds", minutes_as_seconds})
      .convert("tokenizer_model", {"tokenizer, if it is a folder or a .json file", tokenizer_files})
      .convert("num_layers_per_virtual_pipeline_stage",
               {"virtual_pipeline_model_parallel_size, with num_layers", layers_per_virtual_stage})
      .convert("data_parallel_sharding_strategy", {"use_distributed_optimizer: true", sharding_strategy})
      .convert("no_save_optim", {"save_only_model: true", weights_only});
}

void add_megatron_model(ForeignRows& rows) {
  rows.model({"num_layers",
              "hidden_size",
              "ffn_hidden_size",
              "num_attention_heads",
              "num_query_groups",
              "group_query_attention",
              "kv_channels",
              "max_position_embeddings",
              "position_embedding_type",
              "rope_type",
              "use_rotary_position_embeddings",
              "no_position_embedding",
              "rotary_base",
              "rotary_percent",
              "rotary_interleaved",
              "rotary_seq_len_interpolation_factor",
              "use_rope_scaling",
              "rope_scaling_factor",
              "rotary_scaling_factor",
              "yarn_original_max_position_embeddings",
              "mscale",
              "mscale_all_dim",
              "original_max_position_embeddings",
              "beta_fast",
              "beta_slow",
              "normalization",
              "norm_epsilon",
              "layernorm_epsilon",
              "apply_layernorm_1p",
              "qk_layernorm",
              "swiglu",
              "gated_linear_unit",
              "activation_func",
              "quick_geglu",
              "glu_linear_offset",
              "activation_func_clamp_value",
              "add_bias_linear",
              "disable_bias_linear",
              "add_qkv_bias",
              "untie_embeddings_and_output_weights",
              "init_method_std",
              "vocab_size",
              "padded_vocab_size",
              "multi_latent_attention",
              "q_lora_rank",
              "kv_lora_rank",
              "qk_head_dim",
              "qk_pos_emb_head_dim",
              "v_head_dim",
              "softmax_type",
              "enable_gpt_oss"});
  rows.model({"window_size", "window_attn_skip_freq", "moe_layer_freq"}, true);
  rows.model({"num_experts", "moe_ffn_hidden_size", "moe_router_topk", "moe_router_score_function",
              "moe_router_pre_softmax", "moe_router_num_groups", "moe_router_group_topk",
              "moe_router_topk_scaling_factor", "moe_router_enable_expert_bias", "moe_shared_expert_intermediate_size",
              "moe_shared_expert_gate"});
}

void add_megatron_ignored(ForeignRows& rows) {
  rows.no_effect(kReader, {"dataloader_type", "num_workers", "no_create_attention_mask_in_dataloader",
                           "no_mmap_bin_files", "create_attention_mask_in_dataloader", "num_dataset_builder_threads"})
      .no_effect("text is tokenized by the model's own tokenizer; .bin and .idx have tokens already",
                 {"tokenizer_type", "tokenizer_name", "use_fast_tokenizer", "vocab_file", "merge_file",
                  "vocab_extra_ids", "tiktoken_pattern", "tokenizer_hf_include_special_tokens",
                  "no_use_tokenizer_model_from_checkpoint_args", "legacy_tokenizer"})
      .no_effect(kMetrics,
                 {"log_throughput", "log_progress", "log_timers_to_tensorboard", "log_memory_to_tensorboard",
                  "log_validation_ppl_to_tensorboard", "log_world_size_to_tensorboard", "log_loss_scale_to_tensorboard",
                  "log_learning_rate_to_tensorboard", "tensorboard_*", "wandb_*", "one_logger_*", "enable_one_logger",
                  "logging_level", "moe_per_layer_logging", "no_one_logger"})
      .no_effect(kFast, {"cuda_graph_*",
                         "enable_cuda_graph",
                         "external_cuda_graph",
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
                         "no_overlap_p2p_communication",
                         "tp_comm_*",
                         "disable_tp_comm_*",
                         "async_tensor_model_parallel_allreduce",
                         "no_async_tensor_model_parallel_allreduce",
                         "deallocate_pipeline_outputs",
                         "distributed_backend",
                         "empty_unused_memory_level",
                         "manual_gc*",
                         "use_nccl_ub",
                         "nccl_communicator_config_path",
                         "use_tp_pp_dp_mapping_default",
                         "te_rng_tracker",
                         "inference_rng_tracker",
                         "init_model_with_meta_device",
                         "export_force_local_attention",
                         "fsdp_double_buffer",
                         "fsdp_manual_registration",
                         "ddp_pad_buckets_for_high_nccl_busbw",
                         "lazy_mpu_init",
                         "use_cpu_initialization",
                         "enable_experimental",
                         "disable_symmetric_registration"})
      .no_effect(kExperts, {"moe_grouped_gemm", "moe_token_dispatcher_type", "moe_permute_fusion", "moe_enable_deepep",
                            "moe_deepep_*", "moe_flex_dispatcher_backend", "moe_hybridep_*", "moe_router_fusion",
                            "moe_router_padding*", "moe_use_legacy_grouped_gemm", "moe_apply_probs_on_input",
                            "moe_upcycling_*", "moe_extended_tp"})
      .no_effect("routers compute in fp32", {"moe_router_dtype"})
      .no_effect(kExact, {"grad_reduce_in_bf16", "attention_softmax_in_fp32", "no_query_key_layer_scaling",
                          "apply_query_key_layer_scaling", "disable_bf16_reduced_precision_matmul",
                          "megatron_fsdp_grad_comm_dtype", "megatron_fsdp_main_grads_dtype"})
      .no_effect("with fp8, weights are kept in the training type, and cast when they are used",
                 {"fp8_param*", "fp8_param_gather"})
      .no_effect("the types of the optimizer's state are set by exp_avg_dtype and exp_avg_sq_dtype",
                 {"use_precision_aware_optimizer"})
      .no_effect("every update waits for the gradient norm of all ranks", {"enable_optimizer_post_validation"})
      .no_effect(
          "SIGTERM, SIGINT and SIGHUP always save and end the run; exit_signal_grace limits how long that may take",
          {"exit_signal_handler", "exit_signal_handler_for_training"})
      .no_effect(kCheckpoints, {"ckpt_format", "auto_detect_ckpt_format", "dist_ckpt_*", "use_dist_ckpt",
                                "exit_on_missing_checkpoint", "save_retain_interval", "ckpt_assume_constant_structure",
                                "ckpt_fully_parallel_save", "no_ckpt_fully_parallel_save"})
      .no_effect(kInference, {"inference_*", "flash_decode"})
      .no_effect("weights are drawn by global element: all ranks have the same", {"data_parallel_random_init"})
      .no_effect("launchers set it in the environment", {"world_size", "rank"});
}

void add_megatron_refused(ForeignRows& rows) {
  rows.refuse("mock_data", {"false"}, "give train_data; `concord data build --synthetic` makes some")
      .refuse("moe_input_jitter_eps", {"0", "0.0"}, "routers have no jitter")
      .refuse("moe_router_force_load_balancing", {"false"}, "it is for benchmarks: experts are chosen by the router")
      .refuse("moe_pad_experts_*", {"false"}, "experts are not padded")
      .refuse("fp8_margin", {"0"}, kEightBits)
      .refuse("fp8_interval", {"1"}, kEightBits)
      .refuse("fp8_wgrad", {"true"}, kEightBits)
      .refuse("fp8_amax_compute_algo", {"max", "most_recent"},
              "the largest of the last fp8_amax_history_len steps counts")
      .refuse("fp8_dot_product_attention", {"false"}, kEightBits)
      .refuse("fp8_multi_head_attention", {"false"}, kEightBits)
      .refuse("fp4_format", {}, "fp8: hybrid or e4m3 is the smallest format")
      .refuse("step_batch_size_schedule", {}, "use rampup_batch_size: first size, increment, samples", true)
      .refuse("no_save_rng", {"false"}, "checkpoints always have the random generators; no_load_rng: true ignores them")
      .refuse("use_checkpoint_opt_param_scheduler", {"false"},
              "resume with the settings in training_args.yaml of that run, or override_opt_param_scheduler: true to "
              "change them")
      .refuse("use_checkpoint_args", {"false"}, "give --config training_args.yaml of that run")
      .refuse("params_dtype", {}, "use bf16: true or fp16: true")
      .refuse("distribute_saved_activations", {"false"}, "use sequence_parallel: true")
      .refuse("use_megatron_fsdp", {"false"},
              "weights are not sharded over data-parallel ranks; use use_distributed_optimizer and tensor parallelism")
      .refuse("use_torch_fsdp2", {"false"},
              "weights are not sharded over data-parallel ranks; use use_distributed_optimizer and tensor parallelism")
      .refuse("main_params_dtype", {"fp32"}, "main weights are in fp32; exp_avg_dtype and exp_avg_sq_dtype are free")
      .refuse("main_grads_dtype", {"fp32"}, "gradients of bf16 and fp16 models are summed in fp32")
      .refuse("sft_mode", {}, "use stage: sft")
      .refuse("grpo_*", {}, kRollouts)
      .refuse("rl_*", {"false"}, kRollouts)
      .refuse("perform_rl_step", {"false"}, kRollouts)
      .refuse("langrl_*", {}, kRollouts);
}

}  // namespace

std::vector<ForeignSetting> megatron_settings() {
  ForeignRows rows(ForeignProgram::megatron);
  add_megatron_names(rows);
  add_megatron_converted(rows);
  add_megatron_model(rows);
  add_megatron_ignored(rows);
  add_megatron_refused(rows);
  return rows.rows();
}

}  // namespace concord
