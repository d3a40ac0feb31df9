// torchtitan's TOML files; names are prefixed with their section.
#include "trainer/arguments/foreign/conversions.h"
#include "trainer/arguments/foreign/rows.h"

namespace concord {
namespace {

void add_torchtitan_names(ForeignRows& rows) {
  rows.same({{"job.dump_folder", "output_dir"},
             {"metrics.log_freq", "logging_steps"},
             {"optimizer.name", "optimizer"},
             {"optimizer.lr", "learning_rate"},
             {"optimizer.eps", "adam_epsilon"},
             {"optimizer.beta1", "adam_beta1"},
             {"optimizer.beta2", "adam_beta2"},
             {"optimizer.weight_decay", "weight_decay"},
             {"lr_scheduler.warmup_steps", "warmup_steps"},
             {"lr_scheduler.total_steps", "lr_decay_steps"},
             {"training.local_batch_size", "per_device_train_batch_size"},
             {"training.batch_size", "per_device_train_batch_size"},
             {"training.global_batch_size", "global_batch_size"},
             {"training.seq_len", "seq_length"},
             {"training.max_norm", "max_grad_norm"},
             {"training.steps", "max_steps"},
             {"training.seed", "seed"},
             {"debug.seed", "seed"},
             {"debug.deterministic", "deterministic_mode"},
             {"training.dataset_path", "train_data"},
             {"parallelism.tensor_parallel_degree", "tensor_model_parallel_size"},
             {"parallelism.pipeline_parallel_degree", "pipeline_model_parallel_size"},
             {"parallelism.context_parallel_degree", "context_parallel_size"},
             {"parallelism.expert_parallel_degree", "expert_model_parallel_size"},
             {"parallelism.expert_tensor_parallel_degree", "expert_tensor_parallel_size"},
             {"checkpoint.interval", "save_steps"},
             {"validation.dataset_path", "eval_data"},
             {"validation.freq", "eval_steps"}});
}

void add_torchtitan_converted(ForeignRows& rows) {
  rows.convert("model.hf_assets_path", {"model_config and tokenizer, which are in that folder", assets_folder})
      .convert("model.tokenizer_path", {"model_config and tokenizer, if they are in that folder", assets_folder})
      .convert("model.converters", {"float8: fp8: hybrid and fp8_recipe: current", float8_converters})
      .convert("training.dataset", {"nothing: training.dataset_path or train_data is the data", data_set})
      .convert("activation_checkpoint.mode", {"recompute_granularity", activation_checkpoint})
      .convert("checkpoint.enable", {"save_strategy: no for false", checkpoint_enable})
      .convert("parallelism.pipeline_parallel_schedule", {"pipeline_schedule", schedule_name})
      .convert("lr_scheduler.decay_type", {"lr_scheduler_type, or lr_wsd_decay_style with decay_ratio", decay_type})
      .convert("lr_scheduler.decay_ratio", {"lr_scheduler_type: wsd with lr_wsd_decay_steps", decay_ratio})
      .convert("lr_scheduler.min_lr_factor", {"min_lr: that part of learning_rate", min_lr_factor})
      .convert("training.enable_cpu_offload", {"optimizer_cpu_offload: true", cpu_offload})
      .convert("training.mixed_precision_param", {"bf16: true for bfloat16", training_dtype});
}

void add_torchtitan_rest(ForeignRows& rows) {
  rows.model({"model.name"})
      .no_effect("the model is what config.json of model.hf_assets_path says", {"model.flavor"})
      .no_effect(kMetrics, {"job.description", "job.print_args", "job.print_config", "job.custom_config_module",
                            "job.*config_file", "profiling.*", "metrics.*", "comm.*"})
      .no_effect(kFast, {"compile.*", "training.compile", "training.gc_freq", "optimizer.implementation",
                         "parallelism.enable_async_tensor_parallel", "parallelism.fsdp_reshard_after_forward",
                         "parallelism.context_parallel_rotate_method", "parallelism.context_parallel_load_balancer",
                         "parallelism.disable_loss_parallel", "parallelism.expert_parallel_comm_backend",
                         "parallelism.pipeline_parallel_expert_*", "parallelism.pipeline_parallel_microbatch_size",
                         "training.dataloader*", "training.gc_debug", "validation.dataloader*",
                         "debug.deterministic_warn_only"})
      .no_effect("it configures a feature that is not supported or not enabled",
                 {"checkpoint.folder", "checkpoint.async_mode", "activation_checkpoint.*_option",
                  "activation_checkpoint.*fqns", "validation.dataset", "validation.steps", "validation.enable",
                  "validation.seq_len", "validation.local_batch_size", "experimental.*"})
      .no_effect("with model.converters float8, linear layers of attention and MLP compute in fp8, others do not",
                 {"quantize.*"})
      .no_effect("checkpoints can be resumed, and have an HF folder in the training type",
                 {"checkpoint.last_save_model_only", "checkpoint.export_dtype"})
      .refuse("checkpoint.*", {"true", "false"}, "an HF folder is saved every save_steps steps, in the training type")
      .no_effect("layers are assigned evenly to stages; pipeline_model_parallel_layout assigns them otherwise",
                 {"parallelism.module_fqns_per_model_part", "parallelism.pipeline_parallel_layers_per_stage",
                  "parallelism.pipeline_parallel_*_less_layers"})
      .no_effect("failures are found and recovered from without it (docs/faults.md)", {"fault_tolerance.*"})
      .refuse("parallelism.pipeline_parallel_schedule_csv", {"none"}, "pipeline_schedule lists the schedules")
      .refuse("memory_estimation.*", {"false"}, "`concord plan --buckets` prints the memory of a rank")
      .refuse("debug.moe_force_load_balance", {"false"}, "it is for benchmarks: experts are chosen by the router")
      .refuse("optimizer.early_step_in_backward", {"false"}, "an update follows the gradients of all micro-batches")
      .refuse("model.*", {}, "the model is what its config.json says; give model_config")
      .refuse("training.dtype", {"float32"}, "use bf16: true, which keeps weights in fp32 for the optimizer")
      .refuse("training.mixed_precision_reduce", {"float32"}, "gradients are reduced in the type of main_grads_dtype")
      .refuse("parallelism.data_parallel_replicate_degree", {"1", "-1"}, "the remaining ranks are data parallel")
      .refuse("parallelism.data_parallel_shard_degree", {"1", "-1"}, "the remaining ranks are data parallel")
      .refuse("activation_checkpoint.*", {"false", "none"}, "use recompute_granularity: full or selective");
}

}  // namespace

std::vector<ForeignSetting> torchtitan_settings() {
  ForeignRows rows(ForeignProgram::torchtitan);
  add_torchtitan_names(rows);
  add_torchtitan_converted(rows);
  add_torchtitan_rest(rows);
  return rows.rows();
}

}  // namespace concord
