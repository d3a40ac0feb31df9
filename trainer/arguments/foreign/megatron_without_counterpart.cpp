// Megatron-LM's arguments that have no effect here, or are refused. With those of megatron.cpp they are all that its
// parser has, and those of its examples.
#include "trainer/arguments/foreign/rows.h"

namespace concord {
namespace {

constexpr std::string_view kReader =
    "one thread prefetches data (see dataloader_prefetch_factor); the rest depends on the device";
constexpr std::string_view kExperts =
    "tokens are sent to their experts as the platform does it best; results are the same";
constexpr std::string_view kCheckpoints = "checkpoints have one format, which every layout reads (docs/checkpoints.md)";
constexpr std::string_view kExact = "sums are in fp32, which is more exact";
constexpr std::string_view kEightBits = "choose from fp8, fp8_recipe, fp8_amax_history_len and first_last_layers_bf16";
constexpr std::string_view kSharded =
    "weights are not sharded over data-parallel ranks; use use_distributed_optimizer and tensor parallelism";
constexpr std::string_view kFamilies = "no model family here has it";
constexpr std::string_view kConfig = "the model is what its config.json says; give model or model_config";

void add_speed(ForeignRows& rows) {
  rows.no_effect(kFast, {"*_fusion",
                         "cross_entropy_fusion_impl",
                         "cuda_graph_*",
                         "enable_cuda_graph",
                         "external_cuda_graph",
                         "optimizer_cuda_graph",
                         "use_flash_attn",
                         "flash_attention_version",
                         "attention_backend",
                         "transformer_impl",
                         "use_mcore_models",
                         "use_te_activation_func",
                         "use_transformer_engine_op_fuser",
                         "use_fused_weighted_squared_relu",
                         "use_grouped_gemm_for_*",
                         "fused_residual_rmsnorm",
                         "cache_mla_latents",
                         "mlp_chunks_for_*",
                         "no_persist_layer_norm",
                         "overlap_p2p_*",
                         "no_overlap_p2p_communication",
                         "batch_p2p_*",
                         "use_ring_exchange_p2p",
                         "pipeline_model_parallel_comm_backend",
                         "microbatch_group_size_per_virtual_pipeline_stage",
                         "tp_comm_*",
                         "no_tp_comm_*",
                         "disable_tp_comm_*",
                         "async_tensor_model_parallel_allreduce",
                         "no_async_tensor_model_parallel_allreduce",
                         "deallocate_pipeline_outputs",
                         "defer_embedding_wgrad_compute",
                         "wgrad_deferral_limit",
                         "delay_wgrad_compute",
                         "distributed_backend",
                         "disable_gloo_process_groups",
                         "empty_unused_memory_level",
                         "manual_gc*",
                         "no_manual_gc_eval",
                         "disable_manual_gc_eval",
                         "nccl_*",
                         "use_nccl_ub",
                         "use_sharp",
                         "sharp_enabled_group",
                         "symmetric_ar_type",
                         "disable_symmetric_registration",
                         "high_priority_*",
                         "use_tp_pp_dp_mapping*",
                         "hierarchical_context_parallel_sizes",
                         "hybrid_context_parallel",
                         "max_seqlen_per_dp_cp_rank",
                         "num_distributed_optimizer_instances",
                         "ddp_num_buckets",
                         "ddp_pad_buckets_for_high_nccl_busbw",
                         "*align_grad_reduce",
                         "no_align_param_gather",
                         "overlap_param_gather_with_optimizer_step",
                         "reuse_grad_buf_for_mxfp8_param_ag",
                         "overlap_cpu_optimizer_d2h_h2d",
                         "no_pin_cpu_*",
                         "use_torch_optimizer_for_cpu_offload",
                         "no_use_layer_wise_param_layout",
                         "muon_use_syrk",
                         "te_rng_tracker",
                         "inference_rng_tracker",
                         "init_model_with_meta_device",
                         "export_force_local_attention",
                         "lazy_mpu_init",
                         "use_cpu_initialization",
                         "disable_jit_fuser",
                         "*clone_scatter_output_in_embedding",
                         "train_sync_interval",
                         "onnx_safe",
                         "enable_experimental"})
      .no_effect(kExperts, {"moe_grouped_gemm",
                            "moe_token_dispatcher_type",
                            "moe_permute_fusion*",
                            "moe_enable_deepep",
                            "moe_deepep_*",
                            "moe_flex_dispatcher_*",
                            "moe_hybridep_*",
                            "moe_ncclep_*",
                            "moe_router_fusion",
                            "moe_router_padding*",
                            "moe_use_legacy_grouped_gemm",
                            "moe_use_grouped_tensor",
                            "moe_single_grouped_*",
                            "moe_*glu_interleave_size",
                            "moe_paged_stash*",
                            "moe_apply_probs_on_input",
                            "moe_upcycling_*",
                            "moe_extended_tp",
                            "overlap_moe_expert_parallel_comm",
                            "overlap_dispatch_backward_with_experts_wgrad",
                            "ep_overlap_early_attn_memory_release"})
      .no_effect(
          "cpu_offloading moves the inputs of recomputed layers only",
          {"fine_grained_*", "activation_offload_fraction", "offload_modules", "min_offloaded_tensor_size",
           "delay_offload_until_cuda_graph", "delta_offload_bytes_across_pp_ranks", "cpu_offloading_activations",
           "cpu_offloading_weights", "cpu_offloading_double_buffering", "cpu_offloading_retain_pinned_cpu_buffers"})
      .no_effect("layers are assigned evenly to stages; pipeline_model_parallel_layout assigns them otherwise",
                 {"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"});
}

void add_precision(ForeignRows& rows) {
  rows.no_effect("routers compute in fp32", {"moe_router_dtype"})
      .no_effect(kExact, {"grad_reduce_in_bf16", "attention_softmax_in_fp32", "no_query_key_layer_scaling",
                          "apply_query_key_layer_scaling", "disable_bf16_reduced_precision_matmul",
                          "fp16_lm_cross_entropy", "output_logit_dtype", "muon_fp32_matmul_prec",
                          "megatron_fsdp_grad_comm_dtype", "megatron_fsdp_main_grads_dtype", "*fp32_accumulation",
                          "ddp_param_name_patterns_for_fp32_local_accumulation"})
      .no_effect("with fp8, weights are kept in the training type, and cast when they are used", {"fp8_param*"})
      .no_effect("it is used with fp4_format, which is not supported", {"fp4_recipe", "fp4_param_gather"})
      .no_effect("every update waits for the gradient norm of all ranks", {"enable_optimizer_post_validation"});
}

void add_data_and_logs(ForeignRows& rows) {
  rows.no_effect(kReader, {"dataloader_type", "num_workers", "no_create_attention_mask_in_dataloader",
                           "no_mmap_bin_files", "create_attention_mask_in_dataloader", "num_dataset_builder_threads",
                           "dataloader_fast_cache_load", "dataloader_defer_npy_index_mmap", "mid_level_dataset_surplus",
                           "object_storage_cache_path", "enable_msc", "disable_msc"})
      .no_effect(
          "text is tokenized by the model's own tokenizer; .bin and .idx have tokens already",
          {"tokenizer_type", "tokenizer_name", "tokenizer_metadata", "tokenizer_hf_*", "tokenizer_sentencepiece_legacy",
           "tokenizer_special_tokens", "*_tokenizer_sentencepiece_ignore_extra_whitespaces", "null_tokenizer_*",
           "use_fast_tokenizer", "use_gigatoken", "vocab_file", "merge_file", "vocab_extra_ids", "tiktoken_*",
           "*use_tokenizer_model_from_checkpoint_args", "*save_tokenizer_assets", "legacy_tokenizer",
           "allow_ambiguous_pad_tokens"})
      .no_effect("make_vocab_size_divisible_by alone says how the vocabulary is padded",
                 {"no_pad_vocab_size", "disable_pad_vocab_size"})
      .no_effect("conversations are written by the model's own chat template, or by chat_template FILE.jinja",
                 {"sft_tokenizer_prompt_format"})
      .no_effect(kMetrics, {"log_throughput*",
                            "log_progress",
                            "log_energy",
                            "log_straggler",
                            "log_max_attention_logit",
                            "log_device_memory_used",
                            "log_memory_interval",
                            "log_timers_to_tensorboard",
                            "log_memory_to_tensorboard",
                            "log_validation_ppl_to_tensorboard",
                            "log_world_size_to_tensorboard",
                            "log_learning_rate_to_tensorboard",
                            "*log_loss_scale_to_tensorboard",
                            "tensorboard_*",
                            "wandb_*",
                            "otel_*",
                            "one_logger_*",
                            "enable_one_logger",
                            "no_one_logger",
                            "app_tag_run_*",
                            "logging_level",
                            "config_logger_dir",
                            "dump_param_to_param_group_map",
                            "moe_per_layer_logging",
                            "no_barrier_with_level_1_timing",
                            "run_workload_inspector_server"})
      .no_effect("profile writes a timeline without them; the other values of a step are not saved",
                 {"use_pytorch_profiler", "pytorch_profiler_*", "nvtx_ranges", "record_memory_history", "record_shapes",
                  "memory_snapshot_path", "moe_routing_trace_*", "save_activations_interval", "save_dgrads_interval",
                  "save_params_interval", "save_wgrads_interval", "save_tokens_per_expert_interval"});
}

void add_jobs(ForeignRows& rows) {
  rows.no_effect("SIGTERM, SIGINT and SIGHUP always save and end the run; exit_signal_grace limits how long that takes",
                 {"exit_signal_handler", "exit_signal_handler_for_*", "exit_signal"})
      .no_effect(kCheckpoints, {"ckpt_format",
                                "auto_detect_ckpt_format",
                                "dist_ckpt_*",
                                "use_dist_ckpt",
                                "async_strategy",
                                "async_ckpt_*",
                                "use_persistent_ckpt_worker",
                                "exit_on_missing_checkpoint",
                                "save_retain_interval",
                                "verify_integrity",
                                "ckpt_assume_constant_structure",
                                "ckpt_drop_redundant_extra_state",
                                "ckpt_fully_parallel_save*",
                                "ckpt_fully_parallel_load_*",
                                "no_ckpt_fully_parallel_save",
                                "ckpt_pg_tensors_cache_*",
                                "*ckpt_load_validate_sharding_integrity",
                                "*strict_fsdp_dtensor_load",
                                "distrib_optim_fully_reshardable_mem_efficient",
                                "load_main_params_from_ckpt"})
      .no_effect("checkpoints in memory are those of memory_checkpoint_steps",
                 {"non_persistent_*", "persistent_save_interval", "replication*"})
      .no_effect("failures are found and recovered from without it (docs/faults.md)",
                 {"enable_ft_package", "calc_ft_timeouts", "ft_num_warmup_iters", "inprocess_*", "adlr_autoresume*",
                  "fault_injector_*", "error_injection_*", "check_for_spiky_loss", "check_for_large_grads",
                  "gpu_sniff_test_interval", "straggler_ctrlr_port", "straggler_minmax_count",
                  "disable_straggler_on_startup", "result_rejected_tracker_filename", "flight_recorder_*",
                  "no_flight_recorder_*", "disable_flight_recorder_*", "distributed_timeout_seconds_after_init"})
      .no_effect("it is for inference; `concord generate` has its own arguments",
                 {"inference_*", "no_inference_*", "flash_decode", "decode_only_cuda_graphs", "enable_chunked_prefill",
                  "max_tokens_to_oom", "num_speculative_tokens", "use_legacy_static_engine", "mamba_inference_*",
                  "output_bert_embeddings", "bert_embedder_type", "use_same_sampling_seed_across_dp_ranks"})
      .no_effect("weights are drawn by global element: all ranks have the same", {"data_parallel_random_init"})
      .no_effect("launchers set it in the environment", {"world_size", "rank"});
}

void add_other_models(ForeignRows& rows) {
  rows.no_effect(kNotEnabled, {"megatron_fsdp_*",
                               "torch_fsdp2_no_reshard_after_forward",
                               "fsdp_double_buffer",
                               "fsdp_manual_registration",
                               "fsdp_db_use_persist_buf_on_alloc_fail",
                               "outer_dp_sharding_strategy",
                               "enable_full_sharding_in_hsdp",
                               "create_all_gather_group",
                               "keep_fp8_transpose_cache",
                               "suggested_communication_unit_size",
                               "gtp_*",
                               "mamba_*",
                               "disable_mamba_mem_eff_path",
                               "gdp_*",
                               "dsa_*",
                               "*_dsa_indexer_rotate_activation",
                               "*_dsa_indexer_scoring_relu",
                               "mhc_*",
                               "mup_*",
                               "qk_clip_*",
                               "mtp_standalone",
                               "fim_*",
                               "kitchen_*",
                               "logits_load_*",
                               "logits_save_*",
                               "batch_invariant_backend",
                               "muon_coefficient_type"})
      .no_effect("it is for models of images, retrieval or BERT, which are not trained here",
                 {"bert_*",
                  "ict_*",
                  "biencoder_*",
                  "retriever_*",
                  "indexer_*",
                  "block_data_path",
                  "embedding_path",
                  "evidence_data_path",
                  "titles_data_path",
                  "query_in_block_prob",
                  "use_one_sent_docs",
                  "short_seq_prob",
                  "mask_prob",
                  "mask_type",
                  "mask_factor",
                  "dino_*",
                  "swin_backbone_type",
                  "vision_backbone_type",
                  "vision_pretraining_type",
                  "img_h",
                  "img_w",
                  "num_channels",
                  "num_classes",
                  "patch_dim",
                  "classes_fraction",
                  "data_per_class_fraction",
                  "sample_rate",
                  "iter_per_epoch",
                  "relative_attention_*"})
      .refuse("vision_pretraining", {"false"}, "models of images are not supported")
      .refuse("encoder_num_layers", {}, "use num_layers")
      .refuse("decoder_num_layers", {}, "models with an encoder are not supported")
      .refuse("decoder_seq_length", {}, "models with an encoder are not supported");
  for (const std::string_view name :
       {"hybrid_layer_pattern", "hybrid_override_pattern", "mtp_hybrid_override_pattern",
        "experimental_attention_variant", "heterogeneous_layers_config_path",
        "heterogeneous_layers_config_encoded_json", "mrope_section", "no_rope_freq", "linear_*", "spec"}) {
    rows.refuse(name, {}, kConfig);
  }
  for (const std::string_view name : {"is_hybrid_model", "attention_output_gate", "yarn_correction_range_round_to_int",
                                      "no_yarn_correction_range_round_to_int"}) {
    rows.refuse(name, {"false"}, kConfig);
  }
  for (const std::string_view name :
       {"squared_relu", "openai_gelu", "qk_l2_norm", "apply_residual_connection_post_layernorm",
        "enable_mhc_connections", "use_mup", "moe_latent_size", "mtp_use_repeated_layer", "mtp_hsm"}) {
    rows.refuse(name, {"false"}, kFamilies);
  }
}

void add_refused_precision(ForeignRows& rows) {
  rows.refuse("fp8_margin", {"0"}, kEightBits)
      .refuse("fp8_interval", {"1"}, kEightBits)
      .refuse("fp8_wgrad", {"true"}, kEightBits)
      .refuse("no_fp8_wgrad", {"false"}, kEightBits)
      .refuse("disable_fp8_wgrad", {"false"}, kEightBits)
      .refuse("fp8_amax_compute_algo", {"max", "most_recent"},
              "the largest of the last fp8_amax_history_len steps counts")
      .refuse("fp8_dot_product_attention", {"false"}, kEightBits)
      .refuse("fp8_multi_head_attention", {"false"}, kEightBits)
      .refuse("fp8_output_proj", {"false"}, kEightBits)
      .refuse("fp8_quantizer_factory", {}, kEightBits)
      .refuse("te_precision_config_file", {}, kEightBits)
      .refuse("num_layers_at_start_in_bf16", {"1"}, "first_last_layers_bf16 keeps one layer at each end")
      .refuse("num_layers_at_end_in_bf16", {"1"}, "first_last_layers_bf16 keeps one layer at each end")
      .refuse("use_kitchen_attention", {"false"}, kEightBits)
      .refuse("moe_dispatch_fwd_dtype", {"bf16"}, "tokens are sent to their experts in the training type")
      .refuse("moe_combine_bwd_dtype", {"bf16"}, "tokens are sent to their experts in the training type")
      .refuse("fp4_format", {}, "fp8: hybrid or e4m3 is the smallest format")
      .refuse("fp4_quantizer_factory", {}, "fp8: hybrid or e4m3 is the smallest format")
      .refuse("fp32_residual_connection", {"false"}, "the residual stream has the training type")
      .refuse("batch_invariant_mode", {"false"}, "deterministic_mode: true makes runs reproducible")
      .no_effect("chunks of 4 million elements are streamed", {"swap_optimizer_times"})
      .no_effect("exp_avg_dtype, exp_avg_sq_dtype, main_params_dtype and main_grads_dtype act without it",
                 {"use_precision_aware_optimizer"});
}

void add_refused_training(ForeignRows& rows) {
  rows.refuse("moe_input_jitter_eps", {"0", "0.0"}, "routers have no jitter")
      .refuse("moe_router_force_load_balancing", {"false"}, "it is for benchmarks: experts are chosen by the router")
      .refuse("moe_router_force_biased", {}, "it is for benchmarks: experts are chosen by the router")
      .refuse("moe_router_quantile_balancing_ema", {"0", "0.0"}, "use moe_router_bias_update_rate")
      .refuse("moe_enable_routing_replay", {"false"}, kRollouts)
      .refuse("moe_pad_experts_*", {"false"}, "experts are not padded")
      .refuse("moe_expert_rank_capacity_factor", {}, "use moe_expert_capacity_factor")
      .refuse("moe_use_upcycling", {"false"}, "give a model that has experts")
      .refuse("mtp_detach_heads", {"false"}, "MTP layers train the layers before them; use mtp_loss_scaling_factor")
      .refuse("qk_clip", {"false"}, "queries and keys are not clipped")
      .refuse("muon_no_split_qkv", {"false"}, "queries, keys and values are orthogonalized separately")
      .refuse("muon_scalar_optimizer", {"adam"}, "Muon updates all that is not a matrix by AdamW")
      .refuse("muon_tp_mode", {"duplicated", "distributed"}, "matrices are orthogonalized as a whole")
      .refuse("lion_beta1", {}, "use adam_beta1, which is Lion's too")
      .refuse("lion_beta2", {}, "use adam_beta2, which is Lion's too")
      .refuse("apply_wd_to_qk_layernorm", {"false"}, "parameters of one dimension have no weight decay")
      .refuse("no_weight_decay_cond_type", {}, "parameters of one dimension have no weight decay")
      .refuse("embedding_init_method_std", {}, "init_method_std is for all weights")
      .refuse("init_method_xavier_uniform", {"false"}, "new weights are drawn with init_method_std")
      .refuse("no_initialization", {"false"}, "new weights are always drawn")
      .refuse("freeze_all_layers", {"false"}, "use freeze: patterns for the names of parameters that are not trained")
      .refuse("distribute_saved_activations", {"false"}, "use sequence_parallel: true")
      .refuse("tensor_parallel_num_weight_shards", {}, kSharded)
      .refuse("expert_tensor_parallel_num_weight_shards", {}, kSharded)
      .refuse("no_data_sharding", {"false"}, "samples are always divided among the data-parallel ranks")
      .refuse("fake_process_group", {"false"}, "`concord plan` predicts memory and groups of a layout")
      .refuse("skip_train", {"false"}, "give a max_steps that the checkpoint has reached: the last step is evaluated")
      .refuse("test_mode", {"false"}, "tests are `./run test`")
      .refuse("params_dtype", {}, "use bf16: true or fp16: true");
}

void add_refused_data(ForeignRows& rows) {
  rows.refuse("mock_data", {"false"}, "give train_data; `concord data synth --output data` makes some")
      .refuse("data_args_path", {}, "give the file's weights and paths as data_path")
      .refuse("per_split_data_args_path", {}, "give its weights and paths as train_data_path and valid_data_path")
      .refuse("per_dataset_sequences_path", {}, "sizes of data sets are read from their .idx files")
      .refuse("phase_transition_iterations", {}, "give each phase its own run, which resumes the one before")
      .refuse("dataloader_inter_document_masking", {"false"}, "use reset_attention_mask and reset_position_ids")
      .refuse("fim_data", {"false"}, "write the examples of fill-in-the-middle into the data")
      .refuse("logits_load_dir", {}, "there is no distillation")
      .refuse("logits_save_dir", {}, "there is no distillation")
      .refuse("step_batch_size_schedule", {}, "use rampup_batch_size: first size, increment, samples")
      .refuse("eval_global_batch_size", {}, "use per_device_eval_batch_size")
      .refuse("multiple_validation_sets", {"false"}, "use eval_datasets: {NAME: FILE}")
      .refuse("validation_set_names", {}, "use eval_datasets: {NAME: FILE}")
      .refuse("no_save_rng", {"false"}, "checkpoints always have the random generators; no_load_rng: true ignores them")
      .refuse("use_checkpoint_opt_param_scheduler", {"false"},
              "resume with the settings in training_args.yaml of that run, or override_opt_param_scheduler: true to "
              "change them")
      .refuse("use_checkpoint_args", {"false"}, "give --config training_args.yaml of that run")
      .refuse("use_mp_args_from_checkpoint_args", {"false"}, "give --config training_args.yaml of that run")
      .refuse("ckpt_step", {}, "use resume_from_checkpoint: OUTPUT_DIR/checkpoint-STEP")
      .refuse("override_ckpt_iteration", {}, "a resumed run continues at the step of its checkpoint; see finetune")
      .refuse("ckpt_convert_*", {"false"}, "use `concord convert`")
      .refuse("yaml_cfg", {}, "use --config")
      .refuse("sft_mode", {}, "use stage: sft")
      .refuse("grpo_*", {}, kRollouts)
      .refuse("rl_*", {"false"}, kRollouts)
      .refuse("no_rl_*", {"false"}, kRollouts)
      .refuse("refit_method", {"gloo"}, kRollouts)
      .refuse("perform_rl_step", {"false"}, kRollouts)
      .refuse("langrl_*", {}, kRollouts);
}

}  // namespace

void add_megatron_without_counterpart(ForeignRows& rows) {
  add_speed(rows);
  add_precision(rows);
  add_data_and_logs(rows);
  add_jobs(rows);
  add_other_models(rows);
  add_refused_precision(rows);
  add_refused_training(rows);
  add_refused_data(rows);
}

}  // namespace concord
