#include "trainer/arguments/foreign/foreign.h"

#include <algorithm>
#include <unordered_map>

#include "trainer/arguments/foreign/rows.h"

namespace concord {
namespace {

// Adam here is AdamW, as in Megatron: weight decay is decoupled from the gradient. HF's kinds differ only in the
// implementation.
constexpr ValueAlias kValueAliases[] = {
    {"optimizer", "adamw", "adam"},
    {"optimizer", "Adam", "adam"},
    {"optimizer", "AdamW", "adam"},
    {"optimizer", "adamw_hf", "adam"},
    {"optimizer", "adamw_torch", "adam"},
    {"optimizer", "adamw_torch_fused", "adam"},
    {"optimizer", "adamw_torch_npu_fused", "adam"},
    {"optimizer", "adamw_apex_fused", "adam"},
    {"optimizer", "lion_32bit", "lion"},
    {"lora_target", "all", "all-linear"},
    {"packing_strategy", "bfd", "best_fit"},            // TRL
    {"packing_strategy", "ffd", "first_fit"},           // TRL
    {"fp8", "true", "hybrid"},                          // LLaMA-Factory
    {"fp8", "false", "none"},                           // LLaMA-Factory
    {"recompute_modules", "moe", "moe_act"},            // Megatron: the experts' activations
    {"recompute_modules", "mla_up_proj", "layernorm"},  // Megatron: both follow the projections to latents
    {"recompute_modules", "shared_experts", "mlp"},     // Megatron
};

// ROLL's and Megatron's YAML; those of accelerate's are converted.
constexpr std::string_view kPlainSections[] = {"language_model", "model_parallel",  "training_args",
                                               "strategy_args",  "strategy_config", "data_args",
                                               "model_args",     "actor_train",     "additional_configs"};

bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  const std::string_view front = pattern.substr(0, star), back = pattern.substr(star + 1);
  return name.size() >= front.size() + back.size() && name.starts_with(front) && name.ends_with(back);
}

bool is_pattern(const ForeignSetting& setting) { return setting.name.find('*') != std::string_view::npos; }

// Whether |section| is the part of |name| before its first '.'.
bool is_in_section(std::string_view name, std::string_view section) {
  return name.size() > section.size() && name.starts_with(section) && name[section.size()] == '.';
}

}  // namespace

std::span<const ForeignSetting> foreign_settings() {
  static const std::vector<ForeignSetting> all = [] {
    std::vector<ForeignSetting> rows;
    for (const auto& of_program : {huggingface_settings(), llama_factory_settings(), megatron_settings(),
                                   flagscale_settings(), torchtitan_settings()}) {
      rows.insert(rows.end(), of_program.begin(), of_program.end());
    }
    return rows;
  }();
  return all;
}

bool takes_list(const ForeignSetting& setting) {
  const auto* converted = std::get_if<Converted>(&setting.meaning);
  return converted == nullptr || converted->takes_list;
}

const ForeignSetting* find_foreign(std::string_view name) {
  static const std::unordered_map<std::string_view, const ForeignSetting*> exact = [] {
    std::unordered_map<std::string_view, const ForeignSetting*> names;
    for (const ForeignSetting& setting : foreign_settings()) {
      if (!is_pattern(setting)) names.emplace(setting.name, &setting);
    }
    return names;
  }();
  if (const auto found = exact.find(name); found != exact.end()) return found->second;
  for (const ForeignSetting& setting : foreign_settings()) {
    if (is_pattern(setting) && matches(setting.name, name)) return &setting;
  }
  return nullptr;
}

std::span<const ValueAlias> value_aliases() { return kValueAliases; }

std::string_view canonical_value(std::string_view argument, std::string_view value) {
  for (const ValueAlias& alias : kValueAliases) {
    if (alias.argument == argument && alias.value == value) return alias.meaning;
  }
  return value;
}

std::string without_plain_sections(std::string name) {
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.')) {
    if (std::ranges::find(kPlainSections, std::string_view(name).substr(0, dot)) == std::ranges::end(kPlainSections))
      break;
    name.erase(0, dot + 1);
  }
  return name;
}

std::optional<std::string> section_prefix(std::string_view name) {
  if (std::ranges::find(kPlainSections, name) != std::ranges::end(kPlainSections)) return "";
  const auto is_in = [name](const ForeignSetting& setting) { return is_in_section(setting.name, name); };
  return std::ranges::any_of(foreign_settings(), is_in) ? std::optional(std::string(name) + ".") : std::nullopt;
}

}  // namespace concord
