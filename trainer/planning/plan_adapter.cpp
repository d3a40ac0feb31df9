#include "trainer/planning/plan_adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <filesystem>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "trainer/planning/plan_data.h"

namespace concord {
namespace {

template <class Value>
std::vector<std::pair<std::string, Value>> numbers_of(const std::map<std::string, std::string>& texts,
                                                      const char* argument) {
  std::vector<std::pair<std::string, Value>> numbers;
  for (const auto& [key, text] : texts) {
    Value value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw ConfigError(fmt::format("{}: {} of {} is not a number", argument, quoted(text), quoted(key)));
    }
    numbers.emplace_back(key, value);
  }
  return numbers;
}

AdapterConfig new_adapter(const FinetuningArguments& a) {
  AdapterConfig adapter;
  adapter.r = a.rank;
  adapter.lora_alpha = a.alpha > 0 ? a.alpha : 2 * static_cast<double>(a.rank);
  adapter.lora_dropout = a.dropout;
  adapter.use_rslora = a.use_rslora;
  adapter.use_dora = a.use_dora;
  adapter.init_lora_weights = a.init;
  set_targets(a.target, &adapter);
  adapter.target_parameters = a.target_parameters;
  adapter.rank_pattern = numbers_of<int64_t>(a.rank_pattern, "rank_pattern");
  adapter.alpha_pattern = numbers_of<double>(a.alpha_pattern, "alpha_pattern");
  adapter.modules_to_save = a.modules_to_save;
  return adapter;
}

// An adapter that is started from has its own settings; others would be lost without a word.
void check_same_settings(const FinetuningArguments& given, const std::string& folder) {
  FinetuningArguments plain;
  plain.type = given.type;
  plain.adapter = given.adapter;
  plain.dropout = given.dropout;
  plain.quantization_bit = given.quantization_bit;
  plain.freeze_vision_tower = given.freeze_vision_tower;
  plain.freeze_multi_modal_projector = given.freeze_multi_modal_projector;
  plain.freeze_language_model = given.freeze_language_model;
  if (given == plain) return;
  throw ConfigError(
      fmt::format("{} has a rank, an alpha and targets of its own; remove lora_rank, lora_alpha, lora_target, "
                  "lora_target_parameters, use_rslora, use_dora, init_lora_weights, rank_pattern, alpha_pattern and "
                  "modules_to_save, or start without an adapter",
                  folder));
}

// A folder may have a comma in its name.
std::vector<std::string> adapters_of(const std::string& text) {
  if (text.empty()) return {};
  return has_adapter(text) ? std::vector{text} : between_commas("adapter_name_or_path", text);
}

// What was added to the weights before |trained|, which is empty for a new adapter: it remembers that.
std::vector<std::string> merged_before(std::vector<std::string> given, const std::string& trained) {
  for (std::string& each : given) each = std::filesystem::absolute(each).lexically_normal().string();
  if (trained.empty()) return given;
  const std::vector<std::string> own = read_adapter_config(trained).merged_adapters;
  if (given.empty() || given == own) return own;
  if (own.empty()) return given;
  throw ConfigError(
      fmt::format("{} was trained on a base model with {} merged, not {}; pass exactly these adapters, or none",
                  trained, fmt::join(own, ", "), fmt::join(given, ", ")));
}

}  // namespace

void plan_adapter(TrainingPlan* plan) {
  ModelSource& model = plan->arguments.model;
  FinetuningArguments& given = plan->arguments.finetuning;
  if (!model.path.empty() && has_adapter(model.path)) {
    if (!given.is_lora() || !given.adapter.empty()) {
      throw ConfigError(fmt::format(
          "{} holds an adapter, not a model; {}", model.path,
          given.is_lora() ? "give it as model or as adapter_name_or_path, not both"
                          : "set finetuning_type: lora to continue training it, or merge it into its base model with "
                            "`concord merge`"));
    }
    given.adapter = std::exchange(model.path, base_folder_of(model.path));
  }
  if (!given.is_lora()) return;
  std::vector<std::string> folders = adapters_of(given.adapter);
  if (!folders.empty() && !given.new_adapter) {
    plan->adapter_folder = folders.back();
    folders.pop_back();
  }
  const std::string& trained = plan->adapter_folder;
  plan->merged_adapters = merged_before(std::move(folders), trained);
  if (!trained.empty()) check_same_settings(given, trained);
  plan->adapter = trained.empty() ? new_adapter(given) : read_adapter_config(trained);
  plan->adapter->merged_adapters = plan->merged_adapters;
  if (plan->arguments.preference.stage == TrainingStage::rm && trained.empty()) {
    plan->adapter->modules_to_save.push_back("score");  // new, as in peft's task SEQ_CLS
  }
  if (!trained.empty() && given.dropout > 0) plan->adapter->lora_dropout = given.dropout;
  if (model.path.empty()) return;
  plan->adapter->base_model = std::filesystem::absolute(model.path).lexically_normal().string();
}

}  // namespace concord
