// Relations between the settings of the objective, the optimizer and precision.
#include <fmt/format.h>

#include "core/base/refused_combinations.h"
#include "core/optim/lr_schedule.h"
#include "trainer/arguments/relations.h"

namespace concord {
namespace {

void check_finetuning(const TrainingArguments& a, Problems* problems) {
  const FinetuningArguments& given = a.finetuning;
  if (given.is_lora()) {
    if (a.model.path.empty()) {
      problems->add("finetuning_type is lora, but --model is not set; give the HF folder of the frozen base model");
    }
    if (given.new_adapter && given.adapter.empty()) {
      problems->add("create_new_adapter is set without adapter_name_or_path; an adapter is new then anyway");
    }
    if (given.quantization_bit == 0) return;
    if (given.quantization_bit != 4) {
      problems->add(fmt::format("quantization_bit is {}; must be 4, or 0 for none", given.quantization_bit));
    }
    if (given.init != "true") {
      problems->add(refusal_message(Refused::four_bits_with_init,
                                    fmt::format("quantization_bit with init_lora_weights {}", given.init)));
    }
    if (a.model_options.fp8.is_on()) {
      problems->add(refusal_message(Refused::four_bits_with_fp8));
    }
    return;
  }
  FinetuningArguments plain;
  plain.type = given.type;
  plain.trainable_layers = given.trainable_layers;  // of finetuning_type freeze
  plain.trainable_modules = given.trainable_modules;
  plain.extra_modules = given.extra_modules;
  plain.freeze_vision_tower = given.freeze_vision_tower;
  plain.freeze_multi_modal_projector = given.freeze_multi_modal_projector;
  plain.freeze_language_model = given.freeze_language_model;
  if (given == plain) return;
  problems->add(fmt::format(
      "settings of an adapter are given (lora_*, use_rslora, use_dora, init_lora_weights, rank_pattern, alpha_pattern, "
      "modules_to_save, adapter_name_or_path, create_new_adapter or quantization_bit), but finetuning_type is {}; set "
      "finetuning_type: lora, or remove them",
      name_of(given.type)));
}

// Settings that have no meaning for pairs of completions.
void check_pairs(const TrainingArguments& a, Problems* problems) {
  const PreferenceArguments& given = a.preference;
  if (!given.learns_pairs()) return;
  if (a.best_model.metric.ends_with("perplexity")) {
    problems->add(fmt::format("metric_for_best_model is {}, which stage {} does not have; use loss",
                              a.best_model.metric, name_of(given.stage)));
  }
  if (a.model_options.label_smoothing_factor > 0 || a.model_options.z_loss_coeff != 0) {
    problems->add(
        fmt::format("label_smoothing_factor and z_loss_coeff are of losses of tokens, which stage {} does not "
                    "have{}; remove them",
                    name_of(given.stage), given.stage == TrainingStage::dpo ? " (see dpo_label_smoothing)" : ""));
  }
  if (a.model_options.mtp.num_layers > 0) {
    problems->add(refusal_message(
        Refused::mtp_with_pairs,
        fmt::format("mtp_num_layers {} with stage {}", a.model_options.mtp.num_layers, name_of(given.stage))));
  }
  if (a.evaluation.accuracy) {
    problems->add(fmt::format(
        "compute_accuracy is of tokens; stage {} has eval_rewards/accuracies, the share of pairs, anyway; remove it",
        name_of(given.stage)));
  }
  if (given.stage == TrainingStage::rm && a.logging.token_metrics == AutoFlag::on) {
    problems->add("log_token_metrics is of models that predict tokens, which stage rm does not train; remove it");
  }
  if (given.stage == TrainingStage::rm && !a.evaluation.sample_prompts.empty()) {
    problems->add("sample_prompts cannot be continued by a reward model (stage rm); remove them");
  }
}

void check_preferences(const TrainingArguments& a, Problems* problems) {
  const PreferenceArguments& given = a.preference;
  PreferenceArguments plain;
  plain.stage = given.stage;
  if (given.stage == TrainingStage::rm) plain.center_rewards_coefficient = given.center_rewards_coefficient;
  if (given.stage != TrainingStage::dpo) {
    if (given == plain) return;
    problems->add(
        fmt::format("settings of preferences are given (pref_*, dpo_label_smoothing, simpo_gamma, ld_alpha, "
                    "reference_free, ref_model, "
                    "precompute_ref_log_probs or center_rewards_coefficient) that stage {} does not have; set stage: "
                    "dpo, or remove them",
                    name_of(given.stage)));
    return;
  }
  if (given.center_rewards_coefficient > 0) {
    problems->add("center_rewards_coefficient is of reward models (stage: rm); remove it");
  }
  if (given.label_smoothing > 0 && given.loss != PreferenceLoss::sigmoid && given.loss != PreferenceLoss::robust) {
    problems->add(fmt::format("dpo_label_smoothing is of the losses sigmoid and robust, not of {}; remove it",
                              name_of(given.loss)));
  }
  if ((!given.ref_model.empty() || given.precompute_reference) && !given.uses_reference()) {
    problems->add(
        fmt::format("{} is given, but {} uses no reference; remove it",
                    given.ref_model.empty() ? "precompute_ref_log_probs" : "ref_model",
                    given.reference_free ? "reference_free" : "pref_loss " + std::string(name_of(given.loss))));
  }
}

void check_numbers(const TrainingArguments& a, Problems* problems) {
  if (a.precision.fp16 && a.precision.bf16) problems->add("fp16 and bf16 are both true; choose one");
  if (a.loss_scaler.constant > 0 && !a.precision.fp16) {
    problems->add(fmt::format("loss_scale is {:g}, but is used with fp16 only; remove it or set fp16: true",
                              a.loss_scaler.constant));
  }
  if (const auto main = a.optimizer.precision.main_params_dtype; main != MainParamsType::fp32 && !a.precision.bf16) {
    problems->add(
        fmt::format("main_params_dtype is {}, which is for bf16 weights; set bf16: true, or main_params_dtype to fp32",
                    name_of(main)));
  }
  if (a.precision.main_grads_dtype == MainGradsType::bf16 && !a.precision.bf16) {
    problems->add("main_grads_dtype is bf16, but the weights are not; set bf16: true, or main_grads_dtype to fp32");
  } else if (a.precision.main_grads_dtype == MainGradsType::bf16 && a.data.accumulation > kMaxBf16Additions) {
    problems->add(
        fmt::format("main_grads_dtype is bf16 and a step adds the gradients of {} micro-batches; must be at most {}, "
                    "since a bf16 sum "
                    "loses what is smaller than 2^-9 of it; use larger micro-batches, or main_grads_dtype fp32",
                    a.data.accumulation, kMaxBf16Additions));
  }
  if (a.precision.fp16 && a.loss_scaler.initial_scale < a.loss_scaler.min_scale) {
    problems->add(fmt::format("initial_loss_scale {:g} is less than min_loss_scale {:g}", a.loss_scaler.initial_scale,
                              a.loss_scaler.min_scale));
  }
  const int warmups = (a.lr.warmup_steps > 0) + (a.lr.warmup_samples > 0) + (a.lr.warmup_ratio > 0);
  if (warmups > 1) {
    problems->add(
        fmt::format("warmup_steps {}, warmup_samples {} and warmup_ratio {:g} are mutually exclusive; set only one",
                    a.lr.warmup_steps, a.lr.warmup_samples, a.lr.warmup_ratio));
  }
  problems->collect([&] { check_lr_scheduler_type(a.lr.lr_scheduler_type); });
  if (a.lr.min_lr > a.lr.learning_rate) {
    problems->add(fmt::format("min_lr {:g} is greater than learning_rate {:g}", a.lr.min_lr, a.lr.learning_rate));
  }
  const double decoupled_min = a.groups.decoupled_min_lr < 0 ? a.lr.min_lr : a.groups.decoupled_min_lr;
  if (a.groups.decoupled_lr == 0 && a.groups.decoupled_min_lr >= 0) {
    problems->add("decoupled_min_lr is given without decoupled_lr; set that too");
  } else if (a.groups.decoupled_lr > 0 && decoupled_min > a.groups.decoupled_lr) {
    problems->add(fmt::format("{} {:g} is greater than decoupled_lr {:g}; set a smaller decoupled_min_lr",
                              a.groups.decoupled_min_lr < 0 ? "min_lr" : "decoupled_min_lr", decoupled_min,
                              a.groups.decoupled_lr));
  }
}

// What has not been tried together.
void check_optimizer(const TrainingArguments& a, Problems* problems) {
  const bool has_ema = a.optimizer.ema_decay > 0;
  if (!has_ema && (a.evaluation.uses_ema || a.optimizer.ema_start_step > 0)) {
    problems->add(fmt::format("{} is of the average that ema_decay keeps; set ema_decay too, e.g. 0.999",
                              a.evaluation.uses_ema ? "evaluate_ema_weights" : "ema_start_step"));
  }
  if (has_ema && a.best_model.load_at_end && a.saving.only_model) {
    problems->add(refusal_message(Refused::average_of_best_model));
  }
  if (a.groups.loraplus_lr_ratio != 1 && !a.finetuning.is_lora()) {
    problems->add(fmt::format("loraplus_lr_ratio {:g} is for adapters; set finetuning_type: lora, or remove it",
                              a.groups.loraplus_lr_ratio));
  }
}

void check_dropout(const TrainingArguments& a, Problems* problems) {
  if (a.model_options.hidden_dropout > 0 && a.model_options.mtp.num_layers > 0) {
    problems->add(refusal_message(Refused::hidden_dropout_with_mtp,
                                  fmt::format("hidden_dropout {:g} with mtp_num_layers {}",
                                              a.model_options.hidden_dropout, a.model_options.mtp.num_layers)));
  }
}

void check_fp8(const TrainingArguments& a, Problems* problems) {
  const Fp8Args& fp8 = a.model_options.fp8;
  if (!fp8.is_on()) {
    if (fp8 != Fp8Args{}) {
      problems->add(
          "fp8_recipe, fp8_amax_history_len or first_last_layers_bf16 is given, but fp8 is none; set fp8 to "
          "hybrid or e4m3, or remove them");
    }
    return;
  }
  if (fp8.recipe == Fp8Recipe::blockwise && fp8.format != Fp8Formats::e4m3) {
    problems->add(fmt::format("fp8_recipe blockwise is not supported with fp8 {}; use fp8 e4m3", name_of(fp8.format)));
  }
  if (fp8.recipe != Fp8Recipe::delayed && fp8.amax_history_len != Fp8Args{}.amax_history_len) {
    problems->add(fmt::format("fp8_amax_history_len {} means nothing with fp8_recipe {}; remove it",
                              fp8.amax_history_len, name_of(fp8.recipe)));
  }
}

}  // namespace

void check_objective_relations(const TrainingArguments& a, Problems* problems) {
  check_finetuning(a, problems);
  check_pairs(a, problems);
  check_preferences(a, problems);
  check_numbers(a, problems);
  check_optimizer(a, problems);
  check_dropout(a, problems);
  check_fp8(a, problems);
}

}  // namespace concord
