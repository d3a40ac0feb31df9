// LLaMA-Factory's YAML files and ROLL's training_args and strategy_config.
#include "trainer/arguments/foreign/conversions.h"
#include "trainer/arguments/foreign/rows.h"

namespace concord {
namespace {

constexpr std::string_view kAdapterSettings =
    "adapters have lora_rank, lora_alpha, lora_dropout, lora_target, use_rslora, use_dora, init_lora_weights, "
    "loraplus_lr_ratio and quantization_bit";
constexpr std::string_view kOptimizers = "optimizer is adam, lion, muon or sgd";
constexpr std::string_view kLosses = "choose the loss by stage, pref_loss, label_smoothing_factor and z_loss_coeff";
constexpr std::string_view kPartly = "use freeze: patterns for the names of parameters that are not trained";
constexpr std::string_view kNewTokens = "add them to tokenizer.json, and their rows to the weights, first";

void add_llama_factory_accepted(ForeignRows& rows) {
  rows.same({{"neat_packing", "sequence_packing"},
             {"additional_target", "modules_to_save"},
             {"tokenized_path", "data_cache_path"}})
      .convert("val_size", {"split, if it is a fraction", validation_part})
      .convert("disable_gradient_checkpointing", {"recompute_granularity: full for false", recompute_unless_disabled})
      .convert("pissa_init", {"init_lora_weights: pissa_niter_16, or the iterations of pissa_iter", pissa})
      .convert("use_muon", {"optimizer: muon", use_muon})
      .convert("template", {"freeze_vision_tower: true, freeze_multi_modal_projector: true, image_max_pixels: 589824, "
                            "image_min_pixels: 1024, video_max_pixels: 65536, video_min_pixels: 256, video_fps: 2, "
                            "video_maxlen: 128, which are LLaMA-Factory's defaults; conversations are written by the "
                            "model's own chat template, or by chat_template FILE.jinja",
                            llama_factory_defaults})
      .no_effect("conversations are written by the model's own chat template, or by chat_template FILE.jinja",
                 {"default_system", "global_template"})
      .no_effect("pissa_init uses it", {"pissa_iter"})
      .no_effect("PiSSA adapters are always saved relative to the original weights", {"pissa_convert"})
      .no_effect(kFast,
                 {"flash_attn", "enable_liger_kernel", "use_unsloth", "use_unsloth_gc", "use_reentrant_gc",
                  "use_v1_kernels", "disable_shuffling_buffer", "fp8_backend", "fp8_enable_fsdp_float8_all_gather"})
      .no_effect("data is read with one thread, and its tokens are cached",
                 {"preprocessing_num_workers", "preprocessing_batch_size", "overwrite_cache", "streaming",
                  "buffer_size", "data_shared_file_system", "ray_*"})
      .no_effect(kMetrics, {"plot_loss", "include_effective_tokens_per_second"})
      .no_effect("models are saved as an HF folder at every checkpoint and at the end", {"export_hf_on_finish"})
      .no_effect("the scales of 4-bit weights are always quantised themselves", {"double_quantization"})
      .no_effect("images and videos are converted by the model's own processor, and there is no audio",
                 {"image_do_pan_and_scan", "crop_to_patches", "use_audio_in_video", "audio_sampling_rate"});
}

void add_llama_factory_tokens(ForeignRows& rows) {
  rows.no_effect("conversations are written by the model's own chat template, or by chat_template FILE.jinja",
                 {"tool_format"})
      .refuse("enable_thinking", {"true"}, "give a chat template without thinking as chat_template FILE.jinja")
      .refuse("preserve_thinking", {"false"}, "give a chat template that preserves it as chat_template FILE.jinja")
      .refuse("mask_history", {"false"},
              "the loss is on all that the assistant writes; give earlier messages as `prompt` and the last one as "
              "`completion`")
      .refuse("train_on_prompt", {"false"}, "give prompt and answer together as `text` to train on both")
      .refuse("ignore_pad_token_for_loss", {"true"}, "padding is never trained on")
      .refuse("eval_on_each_dataset", {"false"}, "use eval_datasets: {NAME: FILE}")
      .refuse("split_special_tokens", {"false"}, "special tokens are not split");
  for (const std::string_view name : {"add_tokens", "add_special_tokens", "new_special_tokens_config"}) {
    rows.refuse(name, {}, kNewTokens);
  }
  rows.refuse("resize_vocab", {"false"}, kNewTokens).no_effect("no tokens are added", {"init_special_tokens"});
}

void add_llama_factory_model(ForeignRows& rows) {
  rows.same({{"early_stopping_steps", "early_stopping_patience"}})
      .convert("disable_shuffling", {"shuffle: false for true", unshuffled})
      .no_effect(kFast, {"use_mca", "use_megatron_bridge", "upcast_layernorm", "upcast_lmhead_output",
                         "print_param_status", "quantization_device_map"})
      .no_effect("models are read from their folder, or from HF's cache (HF_HOME)",
                 {"cache_dir", "hf_hub_token", "ms_hub_token", "om_hub_token"})
      .no_effect("it is for inference; `concord generate` has its own arguments",
                 {"infer_*", "use_kv_cache", "offload_folder", "do_sample", "temperature", "top_p", "top_k",
                  "num_beams", "eval_num_beams", "length_penalty", "repetition_penalty", "max_new_tokens",
                  "skip_special_tokens", "vllm_*", "sglang_*"})
      .no_effect("`concord merge` and `concord convert` write models", {"export_*"})
      .no_effect(kNotEnabled, {"module_dropout", "ppo_*", "kto_*_weight", "reward_model_*", "swanlab_*",
                               "hyper_parallel_*", "kt_*", "profiler_*", "profile_modules"})
      .refuse("adapter_folder", {}, "give the folder of the adapter as adapter_name_or_path")
      .refuse("rope_scaling", {"none"}, "write rope_scaling into the model's config.json")
      .refuse("shift_attn", {"false"}, "attention is that of the model")
      .refuse("moe_aux_loss_coef", {}, "use moe_aux_loss_coeff")
      .refuse("train_from_scratch", {"false"}, "give model_config, the folder's config.json, instead of model")
      .refuse("ref_model_adapters", {}, "merge them with `concord merge`, and give the result as ref_model")
      .refuse("ref_model_quantization_bit", {}, "the reference has the training type")
      .refuse("reward_model", {}, kRollouts)
      .refuse("pref_bco_weight", {"0", "0.0"}, kLosses)
      .refuse("megatron_pretrained_checkpoint", {}, "give an HF folder as model")
      .refuse("extra_config", {}, "every setting has its own argument; `concord train --help` lists them")
      .refuse("use_swanlab", {"false"}, "report_to lists the trackers")
      .refuse("use_hyper_parallel", {"false"}, "`concord train --help` lists the sizes of parallelism")
      .refuse("use_kt", {"false"}, "optimizer_cpu_offload keeps the optimizer's state on the host")
      .refuse("enable_torch_profiler", {"false"}, "use profile, profile_step_start and profile_step_end");
}

void add_llama_factory_refused(ForeignRows& rows) {
  rows.refuse("quantization_method", {"bnb", "bitsandbytes"}, "4 bits are nf4 with double quantisation")
      .refuse("quantization_type", {"nf4"}, "4 bits are nf4 with double quantisation")
      .refuse("loraplus_lr_embedding", {}, kAdapterSettings)
      .refuse("use_llama_pro", {"false"}, kPartly)
      .refuse("pure_bf16", {"false"}, "use bf16: true, which keeps weights in fp32 for the optimizer")
      .refuse("predict_with_generate", {"false"}, "use `concord generate`")
      .refuse("mixture_of_depths", {}, "layers are not skipped")
      .refuse("mix_strategy", {"concat"}, "use train_data_blend with weights")
      .refuse("interleave_probs", {}, "use train_data_blend with weights")
      .refuse("use_packed_sequences", {"false"}, "use sequence_packing: true");
  for (const std::string_view name : {"use_galore", "use_apollo", "use_badam", "use_adam_mini"}) {
    rows.refuse(name, {"false"}, kOptimizers);
  }
  for (const std::string_view name : {"galore_*", "apollo_*", "badam_*"}) {
    rows.no_effect(kNotEnabled, {name});
  }
  for (const std::string_view name : {"use_dft_loss", "use_asft_loss", "use_eaft_loss"}) {
    rows.refuse(name, {"false"}, kLosses);
  }
  rows.no_effect(kNotEnabled, {"asft_alpha", "eaft_alpha", "dft_*"});
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
    rows.refuse(name, {}, kRollouts);
  }
}

}  // namespace

std::vector<ForeignSetting> llama_factory_settings() {
  ForeignRows rows(ForeignProgram::llama_factory), roll(ForeignProgram::roll);
  add_llama_factory_accepted(rows);
  add_llama_factory_tokens(rows);
  add_llama_factory_model(rows);
  add_llama_factory_refused(rows);
  add_roll(roll);
  std::vector<ForeignSetting> all = rows.rows();
  all.insert(all.end(), roll.rows().begin(), roll.rows().end());
  return all;
}

}  // namespace concord
