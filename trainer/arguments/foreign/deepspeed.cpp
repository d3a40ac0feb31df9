// DeepSpeed's configuration files, as HF's Trainer and LLaMA-Factory are given them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "trainer/arguments/foreign/conversions.h"
#include "trainer/arguments/values.h"

namespace concord {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxFileBytes = 1 << 20;

// How a value of the file is expressed here. Sections are joined by '.'.
struct DeepSpeedName {
  std::string_view name;
  std::string_view argument;
};
constexpr DeepSpeedName kNames[] = {
    {"train_batch_size", "global_batch_size"},
    {"train_micro_batch_size_per_gpu", "per_device_train_batch_size"},
    {"gradient_accumulation_steps", "gradient_accumulation_steps"},
    {"gradient_clipping", "max_grad_norm"},
    {"bf16.enabled", "bf16"},
    {"fp16.enabled", "fp16"},
    {"fp16.loss_scale_window", "loss_scale_window"},
    {"fp16.hysteresis", "hysteresis"},
    {"fp16.min_loss_scale", "min_loss_scale"},
    {"optimizer.params.lr", "learning_rate"},
    {"optimizer.params.eps", "adam_epsilon"},
    {"optimizer.params.weight_decay", "weight_decay"},
    {"tensor_parallel.autotp_size", "tensor_model_parallel_size"},
};

// Values that do not change results, or belong to what is converted as a whole.
constexpr std::string_view kWithoutEffect[] = {"zero_allow_untested_optimizer",
                                               "zero_force_ds_cpu_optimizer",
                                               "steps_per_print",
                                               "wall_clock_breakdown",
                                               "prescale_gradients",
                                               "communication_data_type",
                                               "_comment",
                                               "optimizer.type",
                                               "fp16.initial_scale_power",
                                               "fp16.auto_cast",
                                               "fp16.loss_scale",
                                               "dump_state",
                                               "bf16.auto_cast"};
constexpr std::string_view kSectionsWithoutEffect[] = {"zero_optimization",
                                                       "activation_checkpointing",
                                                       "comms_config",
                                                       "comms_logger",
                                                       "monitor_config",
                                                       "flops_profiler",
                                                       "aio",
                                                       "tensorboard",
                                                       "csv_monitor",
                                                       "wandb",
                                                       "optimizer",
                                                       "scheduler"};

struct FileReading {
  Conversion conversion;
  std::set<std::string> refused;
};

template <class List>
bool has(const List& list, std::string_view name) {
  return std::ranges::find(list, name) != std::ranges::end(list);
}

std::string text_of(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

void take_zero(const json& zero, FileReading* reading) {
  const json stage = zero.value("stage", json(0));
  if (!stage.is_number_integer() || stage < 0 || stage > 3) {
    throw Refusal{fmt::format("has zero_optimization.stage {}, but it must be 0, 1, 2 or 3", one_line(stage.dump()))};
  }
  if (stage > 0) reading->conversion.arguments.emplace_back("use_distributed_optimizer", "true");
  if (stage > 1) {
    reading->conversion.note = fmt::format(
        "of ZeRO stage {} the optimizer's state is sharded over data-parallel ranks (stage 1), weights and gradients "
        "are "
        "not; tensor_model_parallel_size and pipeline_model_parallel_size divide them",
        stage.get<int>());
  }
  const auto device_of = [&zero](const char* section) {
    return zero.contains(section) && zero[section].is_object() ? text_of(zero[section].value("device", json("none")))
                                                               : std::string("none");
  };
  if (device_of("offload_optimizer") == "cpu") {
    reading->conversion.arguments.emplace_back("optimizer_cpu_offload", "true");
  } else if (device_of("offload_optimizer") != "none") {
    reading->refused.insert("zero_optimization.offload_optimizer.device " + device_of("offload_optimizer"));
  }
  if (device_of("offload_param") != "none") {
    reading->conversion.note += reading->conversion.note.empty() ? "" : "; ";
    reading->conversion.note += "weights stay on the device (offload_param)";
  }
}

void take_value(const std::string& name, const json& value, FileReading* reading) {
  if (value == "auto" || value.is_null() || has(kWithoutEffect, name)) return;
  for (const DeepSpeedName& each : kNames) {
    if (each.name == name) {
      reading->conversion.arguments.emplace_back(each.argument, text_of(value));
      return;
    }
  }
  if (name == "optimizer.params.betas" && value.is_array() && value.size() == 2) {
    reading->conversion.arguments.emplace_back("adam_beta1", text_of(value[0]));
    reading->conversion.arguments.emplace_back("adam_beta2", text_of(value[1]));
    return;
  }
  const std::string section = name.substr(0, name.find('.'));
  const bool is_off = value == false || value == 0;
  if (!is_off && !has(kSectionsWithoutEffect, section)) reading->refused.insert(name);
}

void take_section(const std::string& prefix, const json& section, FileReading* reading) {
  for (const auto& [key, value] : section.items()) {
    const std::string name = prefix + key;
    if (name == "zero_optimization" && value.is_object()) {
      take_zero(value, reading);
    } else if (value.is_object()) {
      take_section(name + ".", value, reading);
    } else {
      take_value(name, value, reading);
    }
  }
}

json read_file(const std::string& path) {
  try {
    const InputFile file(path, "give the path of DeepSpeed's JSON file");
    json content = parse_json(file.read(kMaxFileBytes, "a configuration"), path);
    if (content.is_object()) return content;
  } catch (const ConfigError& error) {
    throw Refusal{fmt::format("cannot be read: {}", error.what())};
  }
  throw Refusal{"is not a JSON object"};
}

}  // namespace

Conversion deepspeed_file(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  if (value.form != ArgumentValue::Form::scalar) throw Refusal{"is not a path; give that of DeepSpeed's JSON file"};
  if (value.text.empty()) return {};
  FileReading reading;
  take_section("", read_file(value.text), &reading);
  if (reading.refused.empty()) return reading.conversion;
  throw Refusal{
      fmt::format("has settings that Concord does not support: {}; remove them", fmt::join(reading.refused, ", "))};
}

}  // namespace concord
