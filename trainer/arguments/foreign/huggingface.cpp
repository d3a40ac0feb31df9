// transformers' TrainingArguments (4 and 5), accelerate's and TRL's SFTConfig, DPOConfig and RewardConfig.
#include "trainer/arguments/foreign/conversions.h"
#include "trainer/arguments/foreign/rows.h"

namespace concord {
namespace {

constexpr std::string_view kPlatforms = "`concord platforms` lists the available platforms";
constexpr std::string_view kPrefetch =
    "one thread prefetches data (see dataloader_prefetch_factor); the rest depends on the device";
constexpr std::string_view kUnused = "it configures a feature that is not supported or not enabled";
constexpr std::string_view kLaunchers = "launchers set it in the environment";

void add_hf_names(ForeignRows& rows) {
  rows.same({{"model_name_or_path", "model"},
             {"evaluation_strategy", "eval_strategy"},
             {"full_determinism", "deterministic_mode"},
             {"per_gpu_train_batch_size", "per_device_train_batch_size"},
             {"per_gpu_eval_batch_size", "per_device_eval_batch_size"},
             {"lora_r", "lora_rank"},
             {"lora_target_modules", "lora_target"}});
}

void add_hf_ignored(ForeignRows& rows) {
  rows.no_effect("this command always trains; eval_data and eval_strategy control evaluation",
                 {"do_train", "do_eval", "skip_memory_metrics"})
      .no_effect(kPrefetch, {"dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers",
                             "dataloader_in_order", "dataloader_multiprocessing_context", "remove_unused_columns",
                             "label_names", "length_column_name", "accelerator_config", "dispatch_batches",
                             "split_batches", "even_batches", "use_seedable_sampler"})
      .no_effect(kMetrics, {"logging_dir", "project", "log_level", "log_level_replica", "log_on_each_node",
                            "include_num_input_tokens_seen", "include_tokens_per_second", "include_for_metrics",
                            "trackio_*", "log_completions", "num_completions_to_print"})
      .no_effect(kFast, {"tf32",
                         "torch_compile*",
                         "torchdynamo",
                         "use_liger_kernel",
                         "liger_kernel_config",
                         "use_liger_loss",
                         "ddp_find_unused_parameters",
                         "ddp_bucket_cap_mb",
                         "ddp_broadcast_buffers",
                         "ddp_static_graph",
                         "ddp_backend",
                         "ignore_bias_buffers",
                         "fp16_backend",
                         "fp16_opt_level",
                         "half_precision_backend",
                         "jit_mode_eval",
                         "torch_empty_cache_steps",
                         "eval_accumulation_steps",
                         "low_cpu_mem_usage",
                         "use_cache",
                         "gradient_checkpointing_kwargs",
                         "activation_checkpointing_kwargs",
                         "attn_implementation",
                         "activation_offloading",
                         "padding_free",
                         "pad_to_multiple_of",
                         "use_logits_to_keep",
                         "dataset_num_proc",
                         "dataset_batch_size",
                         "precompute_ref_batch_size",
                         "ref_model_mixup_alpha",
                         "ref_model_sync_steps"})
      .no_effect("per_device_train_batch_size is used as it is; `concord plan` predicts whether it fits",
                 {"auto_find_batch_size"})
      .no_effect("accelerate's launcher uses it; here it is `--nproc`, `--nnodes`, `--node_rank` and `--master_addr`",
                 {"compute_environment", "distributed_type", "machine_rank", "main_process_ip", "main_process_port",
                  "main_training_function", "num_machines", "num_processes", "same_network", "downcast_bf16", "tpu_env",
                  "tpu_use_cluster", "tpu_use_sudo", "rdzv_backend"})
      .no_effect(kLaunchers, {"local_rank", "_n_gpu", "tpu_num_cores", "tpu_metrics_debug"})
      .no_effect(kUnused,
                 {"hub_*", "push_to_hub_*", "batch_eval_metrics", "eval_do_concat_batches", "eval_use_gather_object",
                  "include_inputs_for_metrics", "mp_parameters", "past_index", "ray_scope"});
}

void add_hf_converted(ForeignRows& rows) {
  rows.convert("gradient_checkpointing", {"recompute_granularity: full", recompute_all_layers})
      .convert("activation_checkpointing", {"recompute_granularity: full", recompute_all_layers})
      .convert("use_cpu", {"platform: cpu", on_cpu})
      .convert("no_cuda", {"platform: cpu", on_cpu})
      .convert("bf16_full_eval", {"the training type, which evaluation uses too: bf16", evaluation_in_bf16})
      .convert("fp16_full_eval", {"the training type, which evaluation uses too: fp16", evaluation_in_fp16})
      .convert("deepspeed", {"the file's settings (see DeepSpeed's names below)", deepspeed_file})
      .convert("optim", {"optimizer; those with 8bit set exp_avg_dtype and exp_avg_sq_dtype to 8bit, paged ones "
                         "optimizer_cpu_offload: true and optimizer_offload_update: device",
                         kind_of_optimizer})
      .convert("fsdp", {"use_distributed_optimizer: true, with a note on what is not sharded", fsdp_modes, true})
      .convert("fsdp_config", {"likewise", fsdp_settings})
      .convert("mixed_precision", {"bf16: true or fp16: true", mixed_precision})
      .no_effect(kUnused, {"fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap"});
}

void add_hf_refused(ForeignRows& rows) {
  rows.refuse("restore_callback_states_from_checkpoint", {"false"}, "checkpoints always have their progress")
      .refuse("enable_jit_checkpoint", {"false"}, "SIGTERM always saves a checkpoint before the run ends")
      .refuse("save_safetensors", {"true"}, "weights are always saved as safetensors")
      .refuse("parallelism_config", {},
              "use tensor_model_parallel_size, pipeline_model_parallel_size and context_parallel_size")
      .refuse("group_by_length", {"false"}, "use sequence_packing: true to avoid padding")
      .refuse("train_sampling_strategy", {"random"}, "use shuffle: false to read the data in order")
      .refuse("average_tokens_across_devices", {"true"}, "see calculate_per_token_loss")
      .refuse("optim_args", {"", "none"}, "optimizer settings have their own arguments: adam_beta1, sgd_momentum, ...")
      .refuse("optim_target_modules", {"", "none"}, "all weights use the same optimizer")
      .refuse("debug", {"", "false"}, "use CONCORD_LOG=debug and CONCORD_LAYERS=validate,trace")
      .refuse("use_mps_device", {"false"}, kPlatforms)
      .refuse("use_ipex", {"false"}, kPlatforms)
      .refuse("push_to_hub", {"false"}, "models are saved to a local folder; upload it with HF's own tools");
}

void add_data_of_trl(ForeignRows& rows) {
  rows.same({{"packing", "sequence_packing"},
             {"max_length", "cutoff_len"},
             {"max_seq_length", "cutoff_len"},
             {"chat_template_path", "chat_template"}})
      .convert("eval_packing", {"sequence_packing, which both use", eval_packing})
      .convert("truncation_mode", {"truncation: keep_start is right, keep_end is left", truncation_mode})
      .no_effect("the loss of conversations is always on what the assistant writes", {"assistant_only_loss"})
      .no_effect("padding is not read by the model", {"pad_token"})
      .convert("dataset_name", {"train_data, if it is a file or folder", dataset_path})
      .convert("test_split_size", {"split, if it is a fraction", validation_part})
      .no_effect("data is read with one thread, and its tokens are cached", {"dataset_streaming"})
      .refuse("dataset_config", {}, "give the files of that configuration as train_data")
      .refuse("dataset_train_split", {"train"}, "give the files of that split as train_data")
      .refuse("dataset_test_split", {"test"}, "give the files of that split as eval_data")
      .refuse("datasets", {}, "give their files as train_data_blend")
      .refuse("dataset_kwargs", {}, "docs/data.md lists the forms that data can have")
      .refuse("completion_only_loss", {"true"},
              "the loss of prompts and completions is on the completion; give `text` to train on both")
      .refuse("shuffle_dataset", {"false", "true"}, "use shuffle")
      .refuse("eos_token", {"<eos_token>"}, "the tokenizer's folder names it");
}

void add_model_of_trl(ForeignRows& rows) {
  rows.same({{"lora_modules_to_save", "modules_to_save"}})
      .convert("load_in_4bit", {"quantization_bit: 4", load_in_4bit})
      .convert("use_peft", {"finetuning_type: lora", use_peft})
      .no_effect("scales of 4-bit weights are always quantised themselves",
                 {"use_bnb_nested_quant", "bnb_4bit_quant_storage"})
      .no_effect("the model's folder says it", {"lora_task_type", "model_revision", "trust_remote_code"})
      .refuse("load_in_8bit", {"false"}, "use quantization_bit: 4, or none")
      .refuse("bnb_4bit_quant_type", {"nf4"}, "4 bits are nf4")
      .refuse("model_init_kwargs", {}, "every setting of the model is in its config.json")
      .refuse("router_aux_loss_coef", {"0.001", "0"}, "use moe_aux_loss_coeff")
      .convert("dtype", {"bf16: true or fp16: true, which keep weights in fp32 for the optimizer", dtype_of_model})
      .refuse("torch_dtype", {"auto", "float32"}, "use bf16: true or fp16: true");
}

void add_preferences_of_trl(ForeignRows& rows) {
  rows.same({{"beta", "pref_beta"}, {"label_smoothing", "dpo_label_smoothing"}, {"rpo_alpha", "pref_ftx"}})
      .convert("loss_type", {"pref_loss; nll is the loss of stage sft", loss_type, true})
      .convert("disable_dropout", {"attention_dropout: 0 and hidden_dropout: 0", disable_dropout})
      .refuse("max_prompt_length", {}, "use cutoff_len, which truncates prompt and completion together")
      .refuse("max_completion_length", {}, "use cutoff_len, which truncates prompt and completion together")
      .refuse("loss_weights", {}, "use pref_loss, and pref_ftx for the weight of the sft loss")
      .refuse("f_divergence_type", {"reverse_kl"}, "pref_loss has only the reverse KL")
      .refuse("f_alpha_divergence_coef", {"0.5", "1.0"}, "pref_loss has only the reverse KL")
      .refuse("use_weighting", {"false"}, "all pairs weigh the same")
      .refuse("discopop_tau", {"0.05"}, "pref_loss has no discopop")
      .refuse("sync_ref_model", {"false"}, "the reference does not change; give ref_model for another one");
}

}  // namespace

std::vector<ForeignSetting> huggingface_settings() {
  ForeignRows rows(ForeignProgram::huggingface), trl(ForeignProgram::trl);
  add_hf_names(rows);
  add_hf_converted(rows);
  add_hf_ignored(rows);
  add_hf_refused(rows);
  add_data_of_trl(trl);
  add_model_of_trl(trl);
  add_preferences_of_trl(trl);
  std::vector<ForeignSetting> all = rows.rows();
  all.insert(all.end(), trl.rows().begin(), trl.rows().end());
  return all;
}

}  // namespace concord
