// LLaMA-Factory's YAML files and ROLL's training_args and strategy_config.
#include "trainer/arguments/foreign/conversions.h"
#include "trainer/arguments/foreign/rows.h"

namespace concord {
namespace {

constexpr std::string_view kAdapterSettings =
    "of adapters, lora_rank, lora_alpha, lora_dropout, lora_target, use_rslora, use_dora, rank_pattern, alpha_pattern, "
    "modules_to_save, adapter_name_or_path, create_new_adapter and quantization_bit can be chosen";
constexpr std::string_view kOptimizers = "optimizer is adam, lion, muon or sgd";
constexpr std::string_view kLosses =
    "of losses, stage, pref_loss, label_smoothing_factor and z_loss_coeff can be chosen";
constexpr std::string_view kPartly = "use freeze: patterns for the names of parameters that are not trained";
constexpr std::string_view kImages = "models with images are not supported";

void add_llama_factory_accepted(ForeignRows& rows) {
  rows.same({{"neat_packing", "sequence_packing"}, {"additional_target", "modules_to_save"}})
      .convert("val_size", {"split, if it is a fraction", validation_part})
      .convert("disable_gradient_checkpointing", {"recompute_granularity: full for false", recompute_unless_disabled})
      .convert("pissa_init", {"init_lora_weights: pissa_niter_16, or the iterations of pissa_iter", pissa})
      .convert("use_muon", {"optimizer: muon", use_muon})
      .no_effect("conversations are written by the model's own chat template, or by chat_template FILE.jinja",
                 {"template", "default_system", "global_template"})
      .no_effect("pissa_init uses it", {"pissa_iter"})
      .no_effect(kFast,
                 {"flash_attn", "enable_liger_kernel", "use_unsloth", "use_unsloth_gc", "use_reentrant_gc",
                  "use_v1_kernels", "disable_shuffling_buffer", "fp8_backend", "fp8_enable_fsdp_float8_all_gather"})
      .no_effect("data is read with one thread, and its tokens are cached",
                 {"preprocessing_num_workers", "preprocessing_batch_size", "overwrite_cache", "streaming",
                  "buffer_size", "ray_num_workers"})
      .no_effect(kMetrics, {"plot_loss", "include_effective_tokens_per_second"})
      .no_effect("models are saved as an HF folder at every checkpoint and at the end", {"export_hf_on_finish"})
      .no_effect("the scales of 4-bit weights are always quantised themselves", {"double_quantization"})
      .no_effect("models of text have no images, videos or projectors",
                 {"image_max_pixels", "image_min_pixels", "video_max_pixels", "video_min_pixels", "video_fps",
                  "video_maxlen", "freeze_vision_tower", "freeze_multi_modal_projector"});
}

void add_llama_factory_refused(ForeignRows& rows) {
  rows.refuse("freeze_language_model", {"false"}, kImages)
      .refuse("quantization_method", {"bnb", "bitsandbytes"}, "4 bits are nf4 with double quantisation")
      .refuse("quantization_type", {"nf4"}, "4 bits are nf4 with double quantisation")
      .refuse("loraplus_lr_embedding", {}, kAdapterSettings)
      .refuse("pissa_convert", {"false"}, "`concord merge` merges a PiSSA adapter into the weights it belongs to")
      .refuse("freeze_trainable_layers", {}, kPartly)
      .refuse("freeze_trainable_modules", {}, kPartly)
      .refuse("freeze_extra_modules", {}, kPartly)
      .refuse("use_llama_pro", {"false"}, kPartly)
      .refuse("pure_bf16", {"false"}, "use bf16: true, which keeps weights in fp32 for the optimizer")
      .refuse("eval_dataset", {}, "give the files as eval_data or eval_datasets, or a part of the data by split")
      .refuse("tokenized_path", {}, "tokens are cached without being asked to (data_cache_path)")
      .refuse("predict_with_generate", {"false"}, "use `concord generate`")
      .refuse("mixture_of_depths", {}, "layers are not skipped")
      .refuse("mix_strategy", {"concat"}, "use train_data_blend with weights")
      .refuse("interleave_probs", {}, "use train_data_blend with weights")
      .refuse("use_packed_sequences", {"false"}, "use sequence_packing: true");
  for (const std::string_view name : {"use_galore", "use_apollo", "use_badam", "use_adam_mini"}) {
    rows.refuse(name, {"false"}, kOptimizers);
  }
  for (const std::string_view name : {"galore_*", "apollo_*", "badam_*"}) {
    rows.no_effect("the setting that enables it is not supported", {name});
  }
  for (const std::string_view name : {"use_dft_loss", "use_asft_loss", "use_eaft_loss"}) {
    rows.refuse(name, {"false"}, kLosses);
  }
  rows.no_effect("the setting that enables it is not supported", {"asft_alpha", "eaft_alpha", "dft_*"});
  rows.refuse("oft_*", {}, kAdapterSettings)
      .refuse("use_oft", {"false"}, kAdapterSettings)
      .refuse("use_qoft", {"false"}, kAdapterSettings);
}

void add_roll(ForeignRows& rows) {
  rows.same({{"pretrain", "model"}, {"sequence_length", "cutoff_len"}, {"validation.data_args.file_name", "eval_data"}})
      .convert("file_name", {"train_data; several: train_data_blend", weighted_paths})
      .convert("chosen_key", {"stage: dpo", trains_pairs})
      .refuse("additional_configs", {"{}"}, "every setting has its own argument; `concord train --help` lists them")
      .refuse("save_hf_model", {"true"}, "models are always saved as an HF folder")
      .no_effect("the job is started with `--nproc`, `--nnodes` and CONCORD_PLATFORM",
                 {"num_gpus_per_node", "num_nodes", "device_mapping", "infer_batch_size", "strategy_name", "exp_name",
                  "hydra", "system_envs", "is_offload_states", "is_offload_optimizer_states_in_train_step"})
      .no_effect("metrics are always written to output_dir; report_to names other places",
                 {"track_with", "tracker_kwargs"})
      .no_effect("checkpoints are written to output_dir", {"checkpoint_config"})
      .no_effect("a pair's texts are `chosen` and `rejected`, or what dataset_info.json names", {"rejected_key"})
      .no_effect("the reference is computed by the ranks of the model, with its layout", {"reference"})
      .no_effect("the model's config.json says it", {"model_type"})
      .refuse("ipo", {"false"}, "use pref_loss: ipo");
  for (const std::string_view name : {"critic", "rewards", "actor_infer", "rollout_batch_size", "adv_estimator"}) {
    rows.refuse(name, {}, "there is no reinforcement learning with rollouts");
  }
}

}  // namespace

std::vector<ForeignSetting> llama_factory_settings() {
  ForeignRows rows(ForeignProgram::llama_factory), roll(ForeignProgram::roll);
  add_llama_factory_accepted(rows);
  add_llama_factory_refused(rows);
  add_roll(roll);
  std::vector<ForeignSetting> all = rows.rows();
  all.insert(all.end(), roll.rows().begin(), roll.rows().end());
  return all;
}

}  // namespace concord
