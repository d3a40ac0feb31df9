// Megatron-LM's arguments that have a counterpart here, or describe the model (model_description.cpp);
// megatron_without_counterpart.cpp has the others.
#include "trainer/arguments/foreign/conversions.h"
#include "trainer/arguments/foreign/rows.h"

namespace concord {
namespace {

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
             {"encoder_seq_length", "seq_length"},
             {"num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"},
             {"muon_nesterov", "muon_use_nesterov"},
             {"log_interval", "logging_steps"},
             {"eval_interval", "eval_steps"},
             {"eval_micro_batch_size", "per_device_eval_batch_size"},
             {"start_eval_at_iter", "eval_delay"},
             {"check_weight_hash_across_dp_replicas_interval", "check_replicas_steps"},
             {"save_interval", "save_steps"},
             {"save", "output_dir"},
             {"valid_data_blend", "eval_data_blend"},
             {"fp8_format", "fp8"},
             {"wandb_exp_name", "run_name"}});
}

void add_megatron_converted(ForeignRows& rows) {
  rows.convert("data_path", {"train_data; several, with weights: train_data_blend", weighted_paths, true})
      .convert("train_data_path", {"train_data; several, with weights: train_data_blend", weighted_paths, true})
      .convert("valid_data_path", {"eval_data; several, with weights: eval_data_blend", weighted_eval_paths, true})
      .convert("test_data_path", {"test_data; several, with weights: test_data_blend", weighted_test_paths, true})
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
      .convert("use_megatron_fsdp",
               {"use_distributed_optimizer: true, with a note on what is not sharded", fully_sharded})
      .convert("use_torch_fsdp2", {"likewise", fully_sharded})
      .convert("data_parallel_sharding_strategy", {"use_distributed_optimizer: true", sharding_strategy})
      .convert("checkpoint_activations", {"recompute_granularity: full", recompute_all_layers})
      .convert("sft", {"stage: sft", supervised})
      .convert("full_validation", {"eval_iters: 0", whole_validation})
      .convert("store_param_remainders", {"main_params_dtype: remainder", main_weights_with_remainders})
      .convert("swap_optimizer", {"optimizer_cpu_offload: true, optimizer_offload_update: device", swap_optimizer})
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
              "yarn_beta_fast",
              "beta_slow",
              "yarn_beta_slow",
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
              "enable_gpt_oss",
              "window_size",
              "window_attn_skip_freq",
              "moe_layer_freq",
              "num_experts",
              "moe_ffn_hidden_size",
              "moe_router_topk",
              "moe_router_score_function",
              "moe_router_pre_softmax",
              "moe_router_num_groups",
              "moe_router_group_topk",
              "moe_router_topk_scaling_factor",
              "moe_router_enable_expert_bias",
              "moe_shared_expert_intermediate_size",
              "moe_shared_expert_gate"});
}

}  // namespace

std::vector<ForeignSetting> megatron_settings() {
  ForeignRows rows(ForeignProgram::megatron);
  add_megatron_names(rows);
  add_megatron_converted(rows);
  add_megatron_model(rows);
  add_megatron_without_counterpart(rows);
  return rows.rows();
}

}  // namespace concord
