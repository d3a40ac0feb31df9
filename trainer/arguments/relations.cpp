// Checks of how arguments fit together. Each check is one function that reports what it found; all of them run, so that
// a user sees all errors at once.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/optim/lr_schedule.h"
#include "core/schedule/step_schedule.h"
#include "trainer/arguments/arguments.h"
#include "trainer/data/blend.h"
#include "trainer/data/split.h"

namespace concord {
namespace {

using Found = std::vector<std::string>;

// All of them >= 1.
std::vector<int64_t> whole_numbers(const char* argument, const std::vector<std::string>& texts) {
  std::vector<int64_t> numbers;
  for (const std::string& text : texts) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < 1) {
      throw ConfigError(fmt::format("{} has {}, which is not a whole number >= 1", argument, quoted(text)));
    }
    numbers.push_back(number);
  }
  return numbers;
}

template <class Check>
void collect(Found* found, Check check) {
  try {
    check();
  } catch (const ConfigError& error) {
    found->push_back(error.what());
  }
}

// Whether there is something to evaluate on.
bool evaluates(const TrainingArguments& a) {
  if (a.data.split.empty()) return a.evaluation.is_given();
  try {
    return parse_split(a.data.split)[static_cast<size_t>(DataPart::valid)].has_value();
  } catch (const ConfigError&) {
    return false;  // check_sources says what is wrong
  }
}

void check_sources(const TrainingArguments& a, Found* found) {
  const EvaluationArguments& evaluation = a.evaluation;
  if (a.data.path.empty() && a.data.blend.empty() && a.dataset.name.empty()) {
    found->push_back("no training data: give --train_data (a Megatron prefix, .jsonl, .txt or .safetensors)");
  }
  const auto exclude = [&](bool first, bool second, const char* words) {
    if (first && second) found->push_back(fmt::format("{} are both given; give only one of them", words));
  };
  exclude(!a.data.path.empty(), !a.data.blend.empty(), "train_data and train_data_blend");
  exclude(!a.dataset.name.empty(), !a.data.path.empty() || !a.data.blend.empty(),
          "dataset and train_data (or a blend)");
  exclude(!a.dataset.name.empty(), !a.data.split.empty(), "dataset and split");
  exclude(!evaluation.data.empty(), !evaluation.blend.empty(), "eval_data and eval_data_blend");
  exclude(!evaluation.data.empty() || !evaluation.blend.empty(), !evaluation.sets.empty(),
          "eval_data (or eval_data_blend) and eval_datasets");
  exclude(!evaluation.test_data.empty(), !evaluation.test_blend.empty(), "test_data and test_data_blend");
  exclude(!a.data.split.empty(), evaluation.is_given() || evaluation.has_test(),
          "split and validation or test data of their own");
  collect(found, [&] { parse_split(a.data.split.empty() ? std::vector<std::string>{"1"} : a.data.split); });
  for (const auto* blend : {&a.data.blend, &evaluation.blend, &evaluation.test_blend}) {
    collect(found, [&] { parse_blend(*blend); });
  }
  for (const auto& [name, path] : evaluation.sets) {
    if (name.empty() || path.empty()) found->push_back("eval_datasets has an entry without a name or a path");
  }
}

void check_loop(const TrainingArguments& a, Found* found) {
  collect(found, [&] { batch_ramp(a.steps); });
  collect(found, [&] { skipped_steps(a.steps); });
  if (!a.steps.rampup_batch_size.empty() && !a.steps.has_length()) {
    found->push_back(
        "rampup_batch_size needs max_steps or train_samples: epochs have no fixed number of steps while the batch "
        "grows");
  }
  if (a.steps.decrease_batch_size && !a.steps.rampup_batch_size.empty()) {
    found->push_back(
        "decrease_batch_size_if_needed is not supported with rampup_batch_size; give sizes that are multiples of "
        "per_device_train_batch_size x data-parallel ranks");
  }
  if (a.steps.decrease_batch_size && a.steps.global_batch_size <= 0) {
    found->push_back("decrease_batch_size_if_needed decreases global_batch_size, which is not given; set it");
  }
}

// As in Megatron: of a run whose length is in samples, all lengths are.
void check_train_samples(const TrainingArguments& a, Found* found) {
  if (a.steps.train_samples == 0) return;
  if (a.steps.max_steps > 0) {
    found->push_back(fmt::format("max_steps {} and train_samples {} are both given; give only one of them",
                                 a.steps.max_steps, a.steps.train_samples));
  }
  if (a.data.packing) {
    found->push_back("train_samples counts samples, but sequence_packing trains rows of several; use max_steps");
  }
  if (a.lr.warmup_steps > 0 || a.lr.lr_decay_steps > 0 || a.lr.lr_wsd_decay_steps > 0) {
    found->push_back(
        "with train_samples the learning rate counts samples; use warmup_samples (or warmup_ratio), lr_decay_samples "
        "and lr_wsd_decay_samples instead of warmup_steps, lr_decay_steps and lr_wsd_decay_steps");
  }
}

void check_document_ends(const TrainingArguments& a, Found* found) {
  if (!a.data.acts_at_document_ends()) {
    if (a.data.eod_token_id >= 0)
      found->push_back(
          "eod_token_id is used by reset_position_ids, reset_attention_mask and eod_mask_loss, none of which is set");
    return;
  }
  if (a.data.packing || a.preference.learns_pairs()) {
    found->push_back(fmt::format(
        "reset_position_ids, reset_attention_mask and eod_mask_loss are for rows that are cut from documents, which {} "
        "does not have; remove them",
        a.data.packing ? "sequence_packing" : "stage " + a.preference.stage));
  }
  if (a.data.reset_attention_mask && a.evaluation.predict) {
    found->push_back("do_predict is not supported with reset_attention_mask; remove one of them");
  }
}

void check_model_and_data(const TrainingArguments& a, Found* found) {
  if (a.model.path.empty() == a.model.config.empty()) {
    found->push_back(a.model.path.empty()
                         ? "no model: give --model FOLDER to start from its weights, or --model_config FILE "
                           "to initialize a new model"
                         : fmt::format("model is {} and model_config is {}; give only one of them",
                                       quoted(a.model.path), quoted(a.model.config)));
  }
  check_sources(a, found);
  if (a.output.dir.empty()) found->push_back("output_dir is empty; give a folder");
  if (a.evaluation.strategy == "no" && !a.evaluation.sample_prompts.empty()) {
    throw ConfigError(
        "sample_prompts are continued at every evaluation, but there is none; set eval_data, and eval_strategy to "
        "steps "
        "or epoch");
  }
  if (a.evaluation.strategy != "no" && !evaluates(a)) {
    found->push_back(
        fmt::format("eval_strategy is {}, but eval_data is not set; set eval_data, or use eval_strategy: no",
                    a.evaluation.strategy));
  }
  if (a.steps.max_steps == 0) found->push_back("max_steps is 0; set a number of steps, or -1 to use num_train_epochs");
}

void check_finetuning(const TrainingArguments& a, Found* found) {
  const FinetuningArguments& given = a.finetuning;
  if (given.is_lora()) {
    if (a.model.path.empty()) {
      found->push_back(
          "finetuning_type is lora, but there is no --model FOLDER: an adapter is trained beside weights that stay as "
          "they are");
    }
    if (given.new_adapter && given.adapter.empty()) {
      found->push_back("create_new_adapter is set without adapter_name_or_path; an adapter is new then anyway");
    }
    if (given.quantization_bit == 0) return;
    if (given.quantization_bit != 4) {
      found->push_back(fmt::format("quantization_bit is {}; must be 4, or 0 for none", given.quantization_bit));
    }
    if (given.init != "true") {
      found->push_back(
          fmt::format("quantization_bit with init_lora_weights {}: what is left of the weights cannot be "
                      "held in 4 bits; choose one of them",
                      given.init));
    }
    if (a.model_options.fp8.is_on()) {
      found->push_back("quantization_bit and fp8 are both given; choose one of them");
    }
    return;
  }
  FinetuningArguments plain;
  plain.type = given.type;
  if (given == plain) return;
  found->push_back(fmt::format(
      "settings of an adapter are given (lora_*, use_rslora, use_dora, init_lora_weights, rank_pattern, alpha_pattern, "
      "modules_to_save, adapter_name_or_path, create_new_adapter or quantization_bit), but finetuning_type is {}; set "
      "finetuning_type: lora, or remove them",
      given.type));
}

void check_preferences(const TrainingArguments& a, Found* found) {
  const PreferenceArguments& given = a.preference;
  if (given.learns_pairs() && a.best_model.metric.ends_with("perplexity")) {
    found->push_back(fmt::format("metric_for_best_model is {}, which stage {} does not have; use loss",
                                 a.best_model.metric, given.stage));
  }
  const bool has_blend = !a.data.blend.empty() || !a.evaluation.blend.empty() || !a.evaluation.test_blend.empty() ||
                         a.dataset.name.find(',') != std::string::npos;
  if (given.learns_pairs() && (has_blend || !a.data.split.empty())) {
    found->push_back(fmt::format(
        "stage {} learns from pairs, which cannot be blended or split; put them into one file, give eval_data",
        given.stage));
  }
  if (given.learns_pairs() && (a.model_options.label_smoothing_factor > 0 || a.model_options.z_loss_coeff != 0)) {
    found->push_back(
        fmt::format("label_smoothing_factor and z_loss_coeff are of losses of tokens, which stage {} does not "
                    "have{}; remove them",
                    given.stage, given.stage == "dpo" ? " (see dpo_label_smoothing)" : ""));
  }
  if (given.learns_pairs() && a.model_options.mtp.num_layers > 0) {
    found->push_back(fmt::format("mtp_num_layers is {}, but stage {} does not predict further tokens; remove it",
                                 a.model_options.mtp.num_layers, given.stage));
  }
  if (given.learns_pairs() && a.evaluation.accuracy) {
    found->push_back(fmt::format(
        "compute_accuracy is of tokens; stage {} has eval_rewards/accuracies, the share of pairs, anyway; remove it",
        given.stage));
  }
  if (given.stage == "rm" && a.logging.token_metrics == "true") {
    found->push_back("log_token_metrics is of models that predict tokens, which stage rm does not train; remove it");
  }
  if (given.stage == "rm" && !a.evaluation.sample_prompts.empty()) {
    found->push_back("sample_prompts cannot be continued by a reward model (stage rm); remove them");
  }
  PreferenceArguments plain;
  plain.stage = given.stage;
  if (given.stage == "rm") plain.center_rewards_coefficient = given.center_rewards_coefficient;
  if (given.stage != "dpo") {
    if (given == plain) return;
    found->push_back(
        fmt::format("settings of preferences are given (pref_*, dpo_label_smoothing, simpo_gamma, ld_alpha, "
                    "reference_free, ref_model, "
                    "precompute_ref_log_probs or center_rewards_coefficient) that stage {} does not have; set stage: "
                    "dpo, or remove them",
                    given.stage));
    return;
  }
  if (given.center_rewards_coefficient > 0) {
    found->push_back("center_rewards_coefficient is of reward models (stage: rm); remove it");
  }
  if (given.label_smoothing > 0 && given.loss != "sigmoid" && given.loss != "robust") {
    found->push_back(
        fmt::format("dpo_label_smoothing is of the losses sigmoid and robust, not of {}; remove it", given.loss));
  }
  if ((!given.ref_model.empty() || given.precompute_reference) && !given.uses_reference()) {
    found->push_back(fmt::format("{} is given, but {} uses no reference; remove it",
                                 given.ref_model.empty() ? "precompute_ref_log_probs" : "ref_model",
                                 given.reference_free ? "reference_free" : "pref_loss " + given.loss));
  }
}

void check_numbers(const TrainingArguments& a, Found* found) {
  if (a.precision.fp16 && a.precision.bf16) found->push_back("fp16 and bf16 are both true; choose one");
  if (a.loss_scaler.constant > 0 && !a.precision.fp16) {
    found->push_back(fmt::format("loss_scale is {:g}, but is used with fp16 only; remove it or set fp16: true",
                                 a.loss_scaler.constant));
  }
  if (a.precision.fp16 && a.loss_scaler.initial_scale < a.loss_scaler.min_scale) {
    found->push_back(fmt::format("initial_loss_scale {:g} is less than min_loss_scale {:g}",
                                 a.loss_scaler.initial_scale, a.loss_scaler.min_scale));
  }
  const int warmups = (a.lr.warmup_steps > 0) + (a.lr.warmup_samples > 0) + (a.lr.warmup_ratio > 0);
  if (warmups > 1) {
    found->push_back(
        fmt::format("warmup_steps {}, warmup_samples {} and warmup_ratio {:g} are mutually exclusive; set only one",
                    a.lr.warmup_steps, a.lr.warmup_samples, a.lr.warmup_ratio));
  }
  collect(found, [&] { check_lr_scheduler_type(a.lr.lr_scheduler_type); });
  if (a.lr.min_lr > a.lr.learning_rate) {
    found->push_back(fmt::format("min_lr {:g} is greater than learning_rate {:g}", a.lr.min_lr, a.lr.learning_rate));
  }
  const double decoupled_min = a.groups.decoupled_min_lr < 0 ? a.lr.min_lr : a.groups.decoupled_min_lr;
  if (a.groups.decoupled_lr == 0 && a.groups.decoupled_min_lr >= 0) {
    found->push_back("decoupled_min_lr is given without decoupled_lr; set that too");
  } else if (a.groups.decoupled_lr > 0 && decoupled_min > a.groups.decoupled_lr) {
    found->push_back(fmt::format("{} {:g} is greater than decoupled_lr {:g}; set a smaller decoupled_min_lr",
                                 a.groups.decoupled_min_lr < 0 ? "min_lr" : "decoupled_min_lr", decoupled_min,
                                 a.groups.decoupled_lr));
  }
}

// What has not been tried together.
void check_optimizer(const TrainingArguments& a, Found* found) {
  const bool has_ema = a.optimizer.ema_decay > 0, is_muon = a.optimizer.optimizer == "muon";
  if (!has_ema && (a.evaluation.uses_ema || a.optimizer.ema_start_step > 0)) {
    found->push_back(fmt::format("{} is of the average that ema_decay keeps; set ema_decay too, e.g. 0.999",
                                 a.evaluation.uses_ema ? "evaluate_ema_weights" : "ema_start_step"));
  }
  if (a.optimizer.optimizer_cpu_offload && (has_ema || is_muon)) {
    found->push_back(fmt::format("optimizer_cpu_offload is not supported with {}; remove one of them",
                                 is_muon ? "optimizer: muon" : "ema_decay"));
  }
  if (has_ema && (a.best_model.load_at_end || a.finetuning.is_lora())) {
    found->push_back(fmt::format("ema_decay is not supported with {}; remove one of them",
                                 a.finetuning.is_lora() ? "finetuning_type: lora" : "load_best_model_at_end"));
  }
  if (has_ema && a.preference.learns_pairs()) {
    found->push_back(fmt::format("ema_decay is not supported with stage {}; remove it", a.preference.stage));
  }
  if (is_muon && a.finetuning.is_lora()) {
    found->push_back("optimizer: muon is for the matrices of a model; use adam with finetuning_type: lora");
  }
}

void check_prediction(const TrainingArguments& a, Found* found) {
  if (a.evaluation.loss_only && (a.evaluation.accuracy || a.evaluation.predict)) {
    found->push_back(fmt::format("prediction_loss_only and {} are both set; remove one of them",
                                 a.evaluation.accuracy ? "compute_accuracy" : "do_predict"));
  }
  if (!a.evaluation.predict) return;
  if (a.evaluation.test_data.empty() && a.evaluation.test_blend.empty() && a.data.split.empty()) {
    found->push_back("do_predict is of test data; give test_data, test_data_blend or split too");
  }
  if (a.data.packing || a.preference.learns_pairs()) {
    found->push_back(fmt::format("do_predict is not supported with {}; remove one of them",
                                 a.data.packing ? "sequence_packing" : "stage " + a.preference.stage));
  }
}

void check_profile(const TrainingArguments& a, Found* found) {
  const LoggingArguments& given = a.logging;
  if (given.profile && given.profile_step_start >= given.profile_step_end) {
    found->push_back(fmt::format("profile_step_start {} is not before profile_step_end {}", given.profile_step_start,
                                 given.profile_step_end));
  }
}

// As TRL: the reference of a preference has none, so the model that is compared with it has none either.
void check_dropout(const TrainingArguments& a, Found* found) {
  const double most = std::max(a.model_options.hidden_dropout, a.model_options.attention_dropout);
  if (a.preference.learns_pairs() && most > 0) {
    found->push_back(
        fmt::format("a dropout of {:g} is not supported with stage {}; remove attention_dropout and "
                    "hidden_dropout",
                    most, a.preference.stage));
  }
  if (a.model_options.hidden_dropout > 0 && a.model_options.mtp.num_layers > 0) {
    found->push_back(fmt::format("hidden_dropout {:g} is not supported with mtp_num_layers {}; remove one of them",
                                 a.model_options.hidden_dropout, a.model_options.mtp.num_layers));
  }
}

void check_fp8(const TrainingArguments& a, Found* found) {
  const Fp8Args& fp8 = a.model_options.fp8;
  if (!fp8.is_on()) {
    if (fp8 != Fp8Args{}) {
      found->push_back(
          "fp8_recipe, fp8_amax_history_len or first_last_layers_bf16 is given, but fp8 is none; set fp8 to "
          "hybrid or e4m3, or remove them");
    }
    return;
  }
  if (fp8.recipe == "blockwise" && fp8.format != "e4m3") {
    found->push_back(fmt::format("fp8_recipe blockwise is not supported with fp8 {}; use fp8 e4m3", fp8.format));
  }
  if (fp8.recipe != "delayed" && fp8.amax_history_len != Fp8Args{}.amax_history_len) {
    found->push_back(fmt::format("fp8_amax_history_len {} means nothing with fp8_recipe {}; remove it",
                                 fp8.amax_history_len, fp8.recipe));
  }
  if (a.preference.learns_pairs()) {
    found->push_back(
        fmt::format("fp8 {} is not supported with stage {}; remove one of them", fp8.format, a.preference.stage));
  }
}

void check_metric(const TrainingArguments& a, Found* found) {
  std::vector<std::string> known = {"", "loss", "perplexity"};
  if (a.evaluation.accuracy) known.emplace_back("accuracy");
  for (const auto& [name, path] : a.evaluation.sets) {
    for (const char* kind : {"_loss", "_perplexity"}) known.push_back(name + kind);
    if (a.evaluation.accuracy) known.push_back(name + "_accuracy");
  }
  std::string metric = a.best_model.metric;
  if (metric.starts_with("eval_")) metric.erase(0, 5);
  if (std::find(known.begin(), known.end(), metric) != known.end()) return;
  known.erase(known.begin());
  found->push_back(fmt::format("metric_for_best_model is {}, but must be one of: {}", quoted(a.best_model.metric),
                               fmt::join(known, ", ")));
}

// The rules of HF, so that a checkpoint belongs to every best evaluation. Shares of all steps are compared in
// millionths.
void check_best_model(const TrainingArguments& a, Found* found) {
  check_metric(a, found);
  if (a.best_model.patience > 0 && a.evaluation.strategy == "no") {
    found->push_back("early_stopping_patience counts evaluations, but there are none; set eval_data and eval_strategy");
  }
  if (a.best_model.patience == 0 && a.best_model.threshold > 0) {
    found->push_back("early_stopping_threshold is used with early_stopping_patience only; set that too");
  }
  if (!a.best_model.load_at_end) return;
  if (a.evaluation.strategy != a.saving.strategy || a.saving.strategy == "no") {
    found->push_back(fmt::format(
        "load_best_model_at_end requires eval_strategy and save_strategy to be the same, steps or epoch, but they are "
        "{} and {}{}",
        a.evaluation.strategy, a.saving.strategy, !evaluates(a) ? ", and eval_data is not set" : ""));
    return;
  }
  if (a.saving.strategy != "steps") return;
  const double eval = a.evaluation.steps > 0 ? a.evaluation.steps : a.logging.steps, save = a.saving.steps;
  const bool same_kind = (eval < 1) == (save < 1);
  const double scale = eval < 1 ? 1e6 : 1;
  if (same_kind && std::fmod(std::round(save * scale), std::round(eval * scale)) == 0) return;
  found->push_back(
      fmt::format("load_best_model_at_end requires save_steps to be a multiple of eval_steps, but they are {:g} and "
                  "{:g}{}",
                  save, eval, same_kind ? "" : ", a number and a share of all steps"));
}

void check_reports(const TrainingArguments& a, Found* found) {
  const auto has = [&](const char* name) {
    return std::find(a.report.to.begin(), a.report.to.end(), name) != a.report.to.end();
  };
  if (has("none") && a.report.to.size() > 1)
    found->push_back("report_to lists none together with other names; give none alone, or only the others");
  if (has("prometheus") && a.report.prometheus_port == 0)
    found->push_back("report_to has prometheus, but no port to listen at; give prometheus_port, as in 9400");
  if (!has("prometheus") && a.report.prometheus_port != 0)
    found->push_back("prometheus_port is given, but report_to does not name prometheus; add it");
}

void check_finetune(const TrainingArguments& a, Found* found) {
  if (!a.resume.finetune || !resumes_from_newest(a)) return;
  found->push_back(
      fmt::format("finetune starts a new run in output_dir, but resume_from_checkpoint: {} is the newest checkpoint of "
                  "that same folder; name the checkpoint's folder, and choose another output_dir",
                  a.saving.resume_from));
}

void check_data_parallelism(const TrainingArguments& a, Found* found) {
  if (a.data_parallel.overlap_param_gather && !a.data_parallel.use_distributed_optimizer) {
    found->push_back(
        "overlap_param_gather requires use_distributed_optimizer: true; without it every rank already has all weights");
  }
  if (a.data_parallel.overlap_param_gather && !a.data_parallel.overlap_grad_reduce) {
    found->push_back("overlap_param_gather requires overlap_grad_reduce: true");
  }
}

void check_recovery(const TrainingArguments& a, Found* found) {
  if (a.recovery.max_restarts > 0) return;
  if (a.recovery.spares > 0) {
    found->push_back(
        fmt::format("spares is {}, but without max_restarts nothing is started again after a failure; set max_restarts",
                    a.recovery.spares));
  }
  if (a.report.straggler_action == "replace") {
    found->push_back("straggler_action: replace starts the ranks again, which needs max_restarts; set it, or use warn");
  }
}

// Sequences must split into equal parts.
void check_sequence(const TrainingArguments& a, Found* found) {
  if (a.data.seq_length == 0) return;
  const int64_t context = a.job.context_parallel_size > 1 ? 2 * a.job.context_parallel_size : 1;
  const int64_t tensor = a.model_options.sequence_parallel ? a.job.tensor_model_parallel_size : 1;
  if (a.data.seq_length % (context * tensor) == 0) return;
  found->push_back(
      fmt::format("seq_length {} is not divisible by {}, as context_parallel_size {}{} requires; use a multiple of {}",
                  a.data.seq_length, context * tensor, a.job.context_parallel_size,
                  tensor > 1 ? fmt::format(" with sequence_parallel over {} ranks", tensor) : "", context * tensor));
}

// Micro-batches per step from global_batch_size, once the number of data-parallel ranks is known. Sizes that do not
// divide the world size are rejected by the layout.
void find_accumulation(TrainingArguments* a, int64_t world, Found* found) {
  int64_t data_parallel = world;
  for (const int64_t size :
       {a->job.tensor_model_parallel_size, a->job.pipeline_model_parallel_size, a->job.context_parallel_size}) {
    if (size < 1 || data_parallel % size != 0) return;
    data_parallel /= size;
  }
  const int64_t micro = std::max<int64_t>(1, a->data.micro_batch_size);
  const int64_t rank_samples = a->steps.global_batch_size / data_parallel;
  const int64_t accumulation = rank_samples / micro;
  if (a->steps.decrease_batch_size && accumulation > 0) {
    a->data.accumulation = accumulation;
  } else if (rank_samples * data_parallel != a->steps.global_batch_size || accumulation * micro != rank_samples) {
    found->push_back(
        fmt::format("global_batch_size {} is not divisible by per_device_train_batch_size {} x {} data-parallel ranks",
                    a->steps.global_batch_size, micro, data_parallel));
  } else if (a->data.accumulation != 1 && a->data.accumulation != accumulation) {
    found->push_back(
        fmt::format("global_batch_size {} is not per_device_train_batch_size {} x gradient_accumulation_steps {} x {} "
                    "data-parallel ranks; remove gradient_accumulation_steps (it would be {})",
                    a->steps.global_batch_size, micro, a->data.accumulation, data_parallel, accumulation));
  } else {
    a->data.accumulation = accumulation;
  }
}

void check_layout(const TrainingArguments& a, int64_t world, Found* found) {
  if (a.job.virtual_pipeline_model_parallel_size > 1 && a.job.pipeline_model_parallel_size == 1) {
    found->push_back(fmt::format("virtual_pipeline_model_parallel_size {} requires pipeline_model_parallel_size >= 2",
                                 a.job.virtual_pipeline_model_parallel_size));
    return;
  }
  const int64_t tensor = a.job.tensor_model_parallel_size, pipeline = a.job.pipeline_model_parallel_size;
  const int64_t of_an_expert = a.job.expert_tensor_parallel_size == 0 ? tensor : a.job.expert_tensor_parallel_size;
  if (tensor > 1 && of_an_expert != tensor && !a.model_options.sequence_parallel) {
    found->push_back(fmt::format(
        "expert_tensor_parallel_size {} differs from tensor_model_parallel_size {}, which requires sequence_parallel: "
        "true",
        of_an_expert, tensor));
  }
  // If the number of processes is not known yet, the smallest possible one.
  const int64_t smallest = std::lcm(tensor * a.job.context_parallel_size * pipeline,
                                    of_an_expert * a.job.expert_model_parallel_size * pipeline);
  collect(found, [&] { layout_of(a.job, world > 0 ? world : smallest); });
  const bool has_microbatches = world > 0 || a.steps.global_batch_size <= 0;
  if (has_microbatches) collect(found, [&] { step_schedule(schedule_request(a)); });
}

}  // namespace

std::optional<BatchRamp> batch_ramp(const StepArguments& steps) {
  if (steps.rampup_batch_size.empty()) return std::nullopt;
  const std::vector<int64_t> numbers = whole_numbers("rampup_batch_size", steps.rampup_batch_size);
  if (numbers.size() == 3) return BatchRamp{numbers[0], numbers[1], numbers[2]};
  throw ConfigError(fmt::format(
      "rampup_batch_size has {} numbers; must be three: the first batch size, what it grows by, and the samples in "
      "which it grows",
      numbers.size()));
}

std::vector<int64_t> skipped_steps(const StepArguments& steps) {
  return whole_numbers("iterations_to_skip", steps.iterations_to_skip);
}

ScheduleRequest schedule_request(const TrainingArguments& a) {
  const int64_t vpp = a.job.virtual_pipeline_model_parallel_size;
  const std::string automatic = vpp > 1 ? "interleaved" : "1f1b";
  return {.kind = a.pipeline.schedule == "auto" ? automatic : a.pipeline.schedule,
          .pp = a.job.pipeline_model_parallel_size,
          .microbatches = a.data.accumulation,
          .vpp = vpp > 1 ? vpp : 0};
}

void check_arguments(TrainingArguments* arguments, int64_t world) {
  if (arguments->job.tensor_model_parallel_size == 1) arguments->model_options.sequence_parallel = false;
  if (arguments->precision.bf16 || arguments->precision.fp16)
    arguments->data_parallel.accumulate_allreduce_grads_in_fp32 = true;
  if (arguments->evaluation.strategy == "auto") {
    const std::string when = arguments->evaluation.steps > 0 ? "steps" : "epoch";
    arguments->evaluation.strategy = evaluates(*arguments) ? when : "no";
  }
  if (arguments->saving.resume_from == "false") arguments->saving.resume_from.clear();
  double& dropout = arguments->model_options.attention_dropout;
  if (arguments->preference.learns_pairs() && dropout < 0) dropout = 0;  // see check_dropout
  const bool needs_metric = arguments->best_model.load_at_end || arguments->best_model.patience > 0;
  if (needs_metric && arguments->best_model.metric.empty()) arguments->best_model.metric = "loss";
  Found found;
  if (arguments->steps.global_batch_size > 0 && world > 0) find_accumulation(arguments, world, &found);
  check_model_and_data(*arguments, &found);
  check_loop(*arguments, &found);
  check_train_samples(*arguments, &found);
  check_document_ends(*arguments, &found);
  check_finetuning(*arguments, &found);
  check_preferences(*arguments, &found);
  check_numbers(*arguments, &found);
  check_optimizer(*arguments, &found);
  check_dropout(*arguments, &found);
  check_fp8(*arguments, &found);
  check_profile(*arguments, &found);
  check_prediction(*arguments, &found);
  check_best_model(*arguments, &found);
  check_reports(*arguments, &found);
  check_finetune(*arguments, &found);
  check_data_parallelism(*arguments, &found);
  check_recovery(*arguments, &found);
  check_sequence(*arguments, &found);
  check_layout(*arguments, world, &found);
  if (found.empty()) return;
  if (found.size() == 1) throw ConfigError(found.front());
  std::string text = fmt::format("{} configuration errors:", found.size());
  for (const std::string& one : found) text += "\n  " + one;
  throw ConfigError(text);
}

}  // namespace concord
