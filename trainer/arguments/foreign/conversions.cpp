#include "trainer/arguments/foreign/conversions.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/base/quoted.h"
#include "trainer/arguments/values.h"

namespace concord {
namespace {

constexpr const char* kNotSharded =
    "weights and gradients are not sharded over data-parallel ranks, the optimizer's state is; "
    "tensor_model_parallel_size and pipeline_model_parallel_size divide the weights";

bool exists(const std::string& path) {
  std::error_code failure;
  return std::filesystem::exists(path, failure);
}

bool is_folder_with(const std::string& folder, const char* file) { return exists(folder + "/" + file); }

double positive(const ArgumentValue& value) {
  const double number = as_number(value.text).value_or(-1);
  if (value.form != ArgumentValue::Form::scalar || number <= 0) {
    throw Refusal{fmt::format("is {}, but must be a number above 0", shown(value))};
  }
  return number;
}

std::string joined(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ",") + item;
  return text;
}

// One path is train_data, for example; several are a blend.
Conversion paths_or_blend(const ArgumentValue& value, const char* path, const char* blend) {
  const std::vector<std::string> items = items_of(value);
  if (items.empty()) return {};
  if (items.size() == 1) return {{{path, items.front()}}};
  if (items.size() == 2 && as_number(items.front())) return {{{path, items.back()}}};  // a weight and one source
  return {{{blend, joined(items)}}};
}

Conversion evaluation_type(const ArgumentValue& value, bool trains_in_it, const char* type) {
  if (!read_flag(value) || trains_in_it) return {};
  throw Refusal{fmt::format("is true, which needs {}: true: evaluation computes in the training type", type)};
}

}  // namespace

std::vector<std::string> items_of(const ArgumentValue& value) {
  if (value.form == ArgumentValue::Form::mapping) throw Refusal{"is a mapping, but must be a list"};
  if (value.form == ArgumentValue::Form::list) return value.items;
  std::vector<std::string> items;
  for (size_t begin = 0; begin < value.text.size();) {
    const size_t end = std::min(value.text.find_first_of(", ", begin), value.text.size());
    if (end > begin) items.push_back(value.text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

Conversion recompute_all_layers(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"recompute_granularity", "full"}}} : Conversion{};
}

Conversion recompute_unless_disabled(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{} : Conversion{{{"recompute_granularity", "full"}}};
}

Conversion llama_factory_defaults(const ArgumentValue&, const TrainingArguments&, const ForeignValues&) {
  return {{{"freeze_vision_tower", "true"},
           {"freeze_multi_modal_projector", "true"},
           {"image_max_pixels", "589824"},
           {"image_min_pixels", "1024"},
           {"video_max_pixels", "65536"},
           {"video_min_pixels", "256"},
           {"video_fps", "2"},
           {"video_maxlen", "128"}}};
}

Conversion on_cpu(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"platform", "cpu"}}} : Conversion{};
}

Conversion evaluation_in_bf16(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues&) {
  return evaluation_type(value, arguments.precision.bf16, "bf16");
}

Conversion evaluation_in_fp16(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues&) {
  return evaluation_type(value, arguments.precision.fp16, "fp16");
}

Conversion fsdp_modes(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  Conversion conversion;
  for (const std::string& mode : items_of(value)) {
    if (mode == "false" || mode == "auto_wrap" || mode == "no_shard") continue;
    if (mode == "offload") {
      conversion.arguments.emplace_back("optimizer_cpu_offload", "true");
    } else if (mode == "true" || mode == "full_shard" || mode == "shard_grad_op" || mode.starts_with("hybrid_shard")) {
      conversion.arguments.emplace_back("use_distributed_optimizer", "true");
      conversion.note = kNotSharded;
    } else {
      throw Refusal{
          fmt::format("has {}, but must be of full_shard, shard_grad_op, hybrid_shard, no_shard, offload and "
                      "auto_wrap",
                      quoted(mode))};
    }
  }
  return conversion;
}

Conversion fsdp_settings(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  Conversion conversion;
  if (value.form == ArgumentValue::Form::scalar && !value.text.empty()) {
    conversion.note = "the file is not read: what it can set affects memory and speed, not results";
  }
  for (const auto& [name, text] : value.pairs) {
    if (name == "fsdp_offload_params" && (text == "true" || text == "True")) {
      conversion.arguments.emplace_back("optimizer_cpu_offload", "true");
    }
    if ((name == "fsdp_sharding_strategy" && text != "NO_SHARD") || name == "fsdp_version") {
      conversion.arguments.emplace_back("use_distributed_optimizer", "true");
      conversion.note = kNotSharded;
    }
  }
  return conversion;
}

Conversion mixed_precision(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  if (value.text == "no") return {};
  if (value.text == "bf16" || value.text == "bf16_mixed") return {{{"bf16", "true"}}};
  if (value.text == "fp16" || value.text == "fp16_mixed") return {{{"fp16", "true"}}};
  throw Refusal{fmt::format("is {}, but must be no, bf16 or fp16; for 8 bits use fp8: hybrid", shown(value))};
}

Conversion eval_packing(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues&) {
  if (read_flag(value) == arguments.data.packing) return {};
  throw Refusal{"differs from packing, but training and evaluation data are packed in the same way"};
}

Conversion truncation_mode(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  if (value.text == "keep_start") return {{{"truncation", "right"}}};
  if (value.text == "keep_end") return {{{"truncation", "left"}}};
  throw Refusal{fmt::format("is {}, but must be keep_start or keep_end", shown(value))};
}

Conversion load_in_4bit(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"quantization_bit", "4"}}} : Conversion{};
}

Conversion use_peft(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"finetuning_type", "lora"}}} : Conversion{};
}

Conversion dtype_of_model(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  if (value.text == "bf16" || value.text == "fp16") return {{{value.text, "true"}}};  // ROLL's
  if (value.text == "auto" || value.text == "float32" || value.text == "fp32") return {};
  throw Refusal{
      fmt::format("is {}: weights are kept in fp32 for the optimizer; use bf16: true or fp16: true", shown(value))};
}

Conversion loss_type(const ArgumentValue& value, const TrainingArguments&, const ForeignValues& given) {
  const std::vector<std::string> losses = items_of(value);
  const auto weights = given.find("loss_weights");
  if (losses.size() == 1 && (losses[0] == "nll" || losses[0] == "chunked_nll")) return {};  // stage sft
  if (losses.size() == 1) return {{{"pref_loss", losses[0]}}};
  const bool adds_sft = losses.size() == 2 && losses[1] == "sft";
  if (!adds_sft) throw Refusal{"has several losses; pref_loss is one, and pref_ftx adds the sft loss to it"};
  const std::vector<std::string> factors =
      weights == given.end() ? std::vector<std::string>{"1", "1"} : items_of(weights->second);
  if (factors.size() != 2 || as_number(factors[0]) != 1.0) {
    throw Refusal{"[..., sft] needs loss_weights [1, W]: the preference loss counts once, and pref_ftx is W"};
  }
  return {{{"pref_loss", losses[0]}, {"pref_ftx", factors[1]}}};
}

Conversion disable_dropout(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"attention_dropout", "0"}, {"hidden_dropout", "0"}}} : Conversion{};
}

Conversion validation_part(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  if (as_number(value.text) == 0.0) return {};
  const double part = positive(value);
  if (part < 1) return {{{"split", fmt::format("{:.12g},{:.12g},0", 1 - part, part)}}};
  throw Refusal{fmt::format("is {}, but must be a fraction of the data below 1; or give eval_data", shown(value))};
}

Conversion pissa(const ArgumentValue& value, const TrainingArguments&, const ForeignValues& given) {
  if (!read_flag(value)) return {};
  const auto found = given.find("pissa_iter");
  const std::string iterations = found == given.end() ? "16" : found->second.text;
  return {{{"init_lora_weights", iterations == "-1" ? "pissa" : "pissa_niter_" + iterations}}};
}

// HF's kinds of AdamW and Lion with 8-bit or paged state. Paged state is in host memory and updated on the device.
Conversion kind_of_optimizer(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  constexpr std::string_view kAdamW[] = {"adamw_8bit",  "adamw_bnb_8bit",    "adamw_torch_8bit",
                                         "paged_adamw", "paged_adamw_32bit", "paged_adamw_8bit"};
  constexpr std::string_view kLion[] = {"lion_8bit", "paged_lion", "paged_lion_32bit", "paged_lion_8bit"};
  const bool is_adamw = std::ranges::find(kAdamW, value.text) != std::ranges::end(kAdamW);
  if (!is_adamw && std::ranges::find(kLion, value.text) == std::ranges::end(kLion)) {
    return {{{"optimizer", value.text}}};
  }
  Conversion conversion{{{"optimizer", is_adamw ? "adam" : "lion"}}};
  if (value.text.ends_with("8bit")) {
    conversion.arguments.emplace_back("exp_avg_dtype", "8bit");
    if (is_adamw) conversion.arguments.emplace_back("exp_avg_sq_dtype", "8bit");
  }
  if (value.text.starts_with("paged")) {
    conversion.arguments.emplace_back("optimizer_cpu_offload", "true");
    conversion.arguments.emplace_back("optimizer_offload_update", "device");
  }
  return conversion;
}

// MindSpeed's: state in host memory, updated on the device in slices.
Conversion swap_optimizer(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  if (!read_flag(value)) return {};
  return {{{"optimizer_cpu_offload", "true"}, {"optimizer_offload_update", "device"}}};
}

Conversion use_muon(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"optimizer", "muon"}}} : Conversion{};
}

Conversion unshuffled(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"shuffle", "false"}}} : Conversion{};
}

Conversion dataset_path(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues& given) {
  if (exists(value.text)) return {{{"train_data", value.text}}};
  return data_set(value, arguments, given);
}

Conversion trains_pairs(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  if (value.text == "chosen") return {{{"stage", "dpo"}}};
  throw Refusal{fmt::format("is {}; name the columns of a pair in dataset_info.json (docs/data.md), and set stage: dpo",
                            shown(value))};
}

Conversion weighted_paths(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return paths_or_blend(value, "train_data", "train_data_blend");
}

Conversion weighted_eval_paths(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return paths_or_blend(value, "eval_data", "eval_data_blend");
}

Conversion weighted_test_paths(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return paths_or_blend(value, "test_data", "test_data_blend");
}

Conversion selective_recomputation(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"recompute_granularity", "selective"}}} : Conversion{};
}

Conversion expert_recomputation(const ArgumentValue& value, const TrainingArguments&, const ForeignValues& given) {
  if (!read_flag(value)) return {};
  const std::string modules = given.contains("recompute_activations") ? "core_attn,moe_act" : "moe_act";
  return {{{"recompute_granularity", "selective"}, {"recompute_modules", modules}}};
}

Conversion load_folder(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues&) {
  const std::string& folder = value.text;
  if (is_folder_with(folder, "latest_checkpointed_iteration.txt")) {
    throw Refusal{fmt::format(
        "is {}, a checkpoint of Megatron's; convert it to an HF folder with Megatron-Bridge (docs/checkpoints.md), and "
        "give that as model",
        quoted(folder))};
  }
  if (folder == arguments.output.dir) return {{{"resume_from_checkpoint", "latest"}}};
  if (is_folder_with(folder, "config.json")) return {{{"model", folder}}};
  return {{}, fmt::format("there is no checkpoint in {}, so the run starts at the first step", quoted(folder))};
}

Conversion minutes_as_seconds(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return {{{"ddp_timeout", fmt::format("{:.0f}", 60 * positive(value))}}};
}

Conversion tokenizer_files(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  const std::string& path = value.text;
  if (is_folder_with(path, "tokenizer.json") || (path.ends_with(".json") && exists(path)))
    return {{{"tokenizer", path}}};
  return {{},
          "it is not read: .bin and .idx have tokens already; text needs tokenizer, a tokenizer.json or its folder"};
}

Conversion layers_per_virtual_stage(const ArgumentValue& value, const TrainingArguments& arguments,
                                    const ForeignValues& given) {
  const auto found = given.find("num_layers");
  if (found == given.end()) throw Refusal{"needs num_layers; or use virtual_pipeline_model_parallel_size"};
  const double stages = positive(found->second) / static_cast<double>(arguments.job.pipeline_model_parallel_size);
  return {{{"virtual_pipeline_model_parallel_size", fmt::format("{:g}", stages / positive(value))}}};
}

Conversion fully_sharded(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"use_distributed_optimizer", "true"}}, kNotSharded} : Conversion{};
}

Conversion sharding_strategy(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  if (value.text == "no_shard") return {};
  return {{{"use_distributed_optimizer", "true"}}, value.text == "optim" ? "" : kNotSharded};
}

Conversion supervised(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"stage", "sft"}}} : Conversion{};
}

Conversion whole_validation(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"eval_iters", "0"}}} : Conversion{};
}

Conversion weights_only(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"save_only_model", "true"}}} : Conversion{};
}

Conversion main_weights_with_remainders(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"main_params_dtype", "remainder"}}} : Conversion{};
}

Conversion assets_folder(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues&) {
  Conversion conversion;
  const bool has_model = !arguments.model.path.empty() || !arguments.model.config.empty();
  if (!has_model) conversion.arguments.emplace_back("model_config", value.text);
  if (is_folder_with(value.text, "tokenizer.json")) conversion.arguments.emplace_back("tokenizer", value.text);
  return conversion;
}

Conversion data_set(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues&) {
  const bool has_data =
      !arguments.data.path.empty() || !arguments.dataset.name.empty() || !arguments.data.blend.empty();
  if (has_data) return {};
  throw Refusal{
      fmt::format("is {}, a name; save its text as .jsonl or .parquet, and give that as train_data", shown(value))};
}

Conversion float8_converters(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  Conversion conversion;
  for (const std::string& name : items_of(value)) {
    if (name != "float8" && name != "quantize.linear.float8" && name != "quantize.grouped_mm.float8") {
      throw Refusal{fmt::format("has {}, but only float8 has a counterpart, fp8: hybrid", quoted(name))};
    }
    conversion.arguments = {{"fp8", "hybrid"}, {"fp8_recipe", "current"}};
  }
  return conversion;
}

Conversion activation_checkpoint(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  if (value.text == "none") return {};
  if (value.text == "full" || value.text == "selective") return {{{"recompute_granularity", value.text}}};
  throw Refusal{fmt::format("is {}, but must be none, full or selective", shown(value))};
}

Conversion checkpoint_enable(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return value.text == "false" ? Conversion{{{"save_strategy", "no"}}} : Conversion{};
}

Conversion schedule_name(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues&) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"1F1B", "1f1b"}, {"Interleaved1F1B", "interleaved"}, {"GPipe", "gpipe"}, {"ZBVZeroBubble", "zb-v"}};
  if (arguments.job.pipeline_model_parallel_size == 1) return {};
  for (const auto& [theirs, ours] : kNames) {
    if (value.text == theirs) return {{{"pipeline_schedule", std::string(ours)}}};
  }
  throw Refusal{fmt::format("is {}; use pipeline_schedule: 1f1b, interleaved, zb-h1, zb-v or gpipe", shown(value))};
}

Conversion decay_type(const ArgumentValue& value, const TrainingArguments&, const ForeignValues& given) {
  const bool is_end = given.contains("lr_scheduler.decay_ratio");
  if (is_end && value.text == "sqrt") return {{{"lr_wsd_decay_style", "minus_sqrt"}}};
  return {{{is_end ? "lr_wsd_decay_style" : "lr_scheduler_type", value.text}}};
}

Conversion decay_ratio(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues& given) {
  const double ratio = positive(value);
  const int64_t total = arguments.lr.lr_decay_steps > 0 ? arguments.lr.lr_decay_steps : arguments.steps.max_steps;
  if (total <= 0) throw Refusal{"needs training.steps, of which it is a part"};
  const double steps = std::max(1.0, ratio * static_cast<double>(total));
  Conversion conversion{{{"lr_scheduler_type", "wsd"}, {"lr_wsd_decay_steps", fmt::format("{:.0f}", steps)}}};
  if (!given.contains("lr_scheduler.decay_type")) conversion.arguments.emplace_back("lr_wsd_decay_style", "linear");
  return conversion;
}

Conversion min_lr_factor(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues&) {
  const double factor = as_number(value.text).value_or(-1);
  if (factor < 0 || factor > 1) throw Refusal{fmt::format("is {}, but must be a number from 0 to 1", shown(value))};
  return {{{"min_lr", fmt::format("{:.12g}", factor * arguments.lr.learning_rate)}}};
}

Conversion cpu_offload(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  return read_flag(value) ? Conversion{{{"optimizer_cpu_offload", "true"}}} : Conversion{};
}

Conversion training_dtype(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  if (value.text == "float32") return {};
  if (value.text == "bfloat16") return {{{"bf16", "true"}}};
  throw Refusal{fmt::format("is {}, but must be float32 or bfloat16", shown(value))};
}

}  // namespace concord
