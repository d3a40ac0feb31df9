#include "trainer/parameter_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

// The tensors that a parameter consists of, by the names they have in files.
std::vector<std::string> tensor_names(const ShardSpec& parameter) {
  std::vector<std::string> names;
  for (const ShardSpec::Piece& piece : parameter.pieces) names.push_back(piece.name);
  if (names.empty() || parameter.joined) names = {parameter.name};
  return names;
}

int64_t matches(const std::regex& regex, const std::vector<std::string>& names) {
  return std::count_if(names.begin(), names.end(),
                       [&](const std::string& name) { return std::regex_search(name, regex); });
}

bool is_matched(const std::regex& regex, const ShardSpec& parameter) {
  return std::regex_search(parameter.name, regex) || matches(regex, tensor_names(parameter)) > 0;
}

// |text| as a regular expression that matches itself.
std::string literal(const std::string& text) {
  std::string pattern;
  for (const char each : text) {
    if (std::string_view(".[]{}()\\*+?^$|").find(each) != std::string_view::npos) pattern += '\\';
    pattern += each;
  }
  return pattern;
}

bool is_output(const ShardSpec& parameter) { return parameter.name.starts_with("lm_head"); }
// The second group of peft's create_loraplus_optimizer.
bool is_loraplus(const ShardSpec& parameter) {
  const size_t dims = parameter.dims.size() - (parameter.stacked ? 1 : 0);
  return dims == 1 || parameter.name.find(".lora_B.") != std::string::npos;
}
bool is_embedding(const ShardSpec& parameter) { return parameter.name.find("embed_tokens") != std::string::npos; }

}  // namespace

ParameterGroups::Pattern ParameterGroups::compiled(const std::string& text, const char* argument) {
  constexpr size_t kMaxPatternLength = 4096;
  if (text.empty() || text.size() > kMaxPatternLength) {
    throw ConfigError(
        fmt::format("{} has a pattern of {} letters; must be from 1 to {}", argument, text.size(), kMaxPatternLength));
  }
  try {
    return {text, std::regex(text)};
  } catch (const std::regex_error& error) {
    throw ConfigError(
        fmt::format("{}: {} is not a regular expression: {}", argument, quoted(text), one_line(error.what())));
  }
}

std::vector<ParameterGroups::Pattern> ParameterGroups::multipliers(const std::map<std::string, std::string>& texts,
                                                                   const char* argument) {
  std::vector<Pattern> patterns;
  for (const auto& [key, text] : texts) {
    Pattern pattern = compiled(key, argument);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pattern.multiplier);
    if (error != std::errc() || end != text.data() + text.size() || !(pattern.multiplier >= 0) ||
        !std::isfinite(pattern.multiplier)) {
      throw ConfigError(fmt::format("{}: {} of {} is not a number >= 0", argument, quoted(text), quoted(key)));
    }
    patterns.push_back(std::move(pattern));
  }
  return patterns;
}

std::vector<std::pair<std::string, double>> group_learning_rates(const GroupArguments& arguments, double lr,
                                                                 double decoupled_lr) {
  std::vector<std::pair<std::string, double>> rates;
  const bool decouples = arguments.decoupled_lr > 0;
  if (decouples) rates.emplace_back("decoupled_learning_rate", decoupled_lr);
  if (arguments.head_lr_mult != 1)
    rates.emplace_back("head_learning_rate", (decouples ? decoupled_lr : lr) * arguments.head_lr_mult);
  if (arguments.loraplus_lr_ratio != 1) rates.emplace_back("loraplus_learning_rate", lr * arguments.loraplus_lr_ratio);
  for (const auto& [pattern, multiplier] : arguments.lr_mult_pattern)
    rates.emplace_back("learning_rate/" + pattern, lr * std::stod(multiplier));
  return rates;
}

std::string frozen_pattern(const FinetuningArguments& arguments, int64_t layers) {
  const int64_t count = std::abs(arguments.trainable_layers);
  if (count < 1 || count > layers) {
    throw ConfigError(
        fmt::format("freeze_trainable_layers is {}, but the model has {} layers", arguments.trainable_layers, layers));
  }
  const int64_t first = arguments.trainable_layers > 0 ? layers - count : 0;
  std::vector<std::string> numbers, modules;
  for (int64_t layer = first; layer < first + count; ++layer) numbers.push_back(std::to_string(layer));
  for (const std::string& module : arguments.trainable_modules)
    modules.push_back(module == "all" ? "" : literal(module));
  std::string trained = fmt::format("layers\\.({})\\.({})", fmt::join(numbers, "|"), fmt::join(modules, "|"));
  for (const std::string& module : arguments.extra_modules) trained += "|" + literal(module);
  return fmt::format("^(?!.*({}))", trained);
}

std::vector<std::string> frozen_parts(const FinetuningArguments& arguments) {
  const bool is_lora = arguments.is_lora();
  if (arguments.freeze_language_model && is_lora) {
    throw ConfigError("freeze_language_model with finetuning_type lora: adapters are on the language model only");
  }
  const bool tower = arguments.freeze_vision_tower, projector = arguments.freeze_multi_modal_projector;
  if (arguments.freeze_language_model && tower && projector) {
    throw ConfigError(
        "freeze_vision_tower, freeze_multi_modal_projector and freeze_language_model leave nothing to train; remove "
        "one");
  }
  std::vector<std::string> patterns;
  if (is_lora) return patterns;
  if (tower) patterns.emplace_back("^(model\\.)?visual\\.(?!merger\\.)");
  if (projector) patterns.emplace_back("^(model\\.)?visual\\.merger\\.");
  if (arguments.freeze_language_model) patterns.emplace_back("^(?!(model\\.)?visual\\.)");
  return patterns;
}

ParameterGroups::ParameterGroups(const GroupArguments& arguments)
    : lr_(multipliers(arguments.lr_mult_pattern, "lr_mult_pattern")),
      weight_decay_(multipliers(arguments.weight_decay_mult_pattern, "weight_decay_mult_pattern")),
      head_(arguments.head_lr_mult),
      loraplus_(arguments.loraplus_lr_ratio),
      decouples_(arguments.decoupled_lr > 0) {
  for (const std::string& text : arguments.freeze) freeze_.push_back(compiled(text, "freeze"));
}

bool ParameterGroups::freezes(const ShardSpec& parameter) const {
  return std::any_of(freeze_.begin(), freeze_.end(),
                     [&](const Pattern& pattern) { return is_matched(pattern.regex, parameter); });
}

int64_t ParameterGroups::frozen_parameters(const ModelConfig& config) const {
  if (freeze_.empty()) return 0;
  const StageLayers whole{
      .embedding = true, .layers = config.num_hidden_layers, .mtp_layers = config.mtp_layers, .loss = true};
  std::map<std::string, int64_t> sizes;  // by name: a tied embedding is planned twice
  for (const ParameterPlan& plan : plan_parameters(config, whole, {})) {
    if (plan.buffer || !freezes(plan.spec)) continue;
    int64_t& size = sizes[plan.spec.name] = 1;
    for (const ShardSpec::Dim& dim : plan.spec.dims) size *= dim.size;
  }
  int64_t elements = 0;
  for (const auto& [name, size] : sizes) elements += size;
  return elements;
}

double ParameterGroups::product(const std::vector<Pattern>& patterns, const ShardSpec& parameter) {
  double result = 1;
  for (const Pattern& pattern : patterns) {
    if (is_matched(pattern.regex, parameter)) result *= pattern.multiplier;
  }
  return result;
}

double ParameterGroups::lr_multiplier(const ShardSpec& parameter) const {
  double result = product(lr_, parameter);
  if (is_output(parameter)) result *= head_;
  if (is_loraplus(parameter)) result *= loraplus_;
  return result;
}

bool ParameterGroups::is_decoupled(const ShardSpec& parameter) const {
  return decouples_ && (is_output(parameter) || is_embedding(parameter));
}

double ParameterGroups::weight_decay_multiplier(const ShardSpec& parameter) const {
  return product(weight_decay_, parameter);
}

void ParameterGroups::check(const ModelConfig& config, const std::vector<StageLayers>& stages,
                            const AdapterModules* adapter) const {
  std::vector<ParameterPlan> all;
  for (size_t i = 0; i < stages.size(); ++i) {
    std::vector<ParameterPlan> own = plan_parameters(config, stages[i], {.adapter = adapter});
    std::erase_if(own, [](const ParameterPlan& plan) { return plan.frozen; });
    const auto is_trained = [&](const ParameterPlan& plan) { return !plan.buffer && !freezes(plan.spec); };
    if (!freeze_.empty() && std::none_of(own.begin(), own.end(), is_trained)) {
      throw ConfigError(fmt::format("freeze leaves nothing to train on stage {} of the pipeline; freeze less", i));
    }
    for (const ParameterPlan& plan : own) {
      if (adapter == nullptr || plan.adapter || !freezes(plan.spec)) continue;
      throw ConfigError(
          fmt::format("freeze matches {}, which modules_to_save trains; remove it from one of them", plan.spec.name));
    }
    all.insert(all.end(), own.begin(), own.end());
  }
  for (const auto* list : {&freeze_, &lr_, &weight_decay_}) {
    const char* argument = list == &freeze_ ? "freeze" : list == &lr_ ? "lr_mult_pattern" : "weight_decay_mult_pattern";
    for (const Pattern& pattern : *list) {
      bool is_used = false;
      for (const ParameterPlan& plan : all) {
        is_used |= is_matched(pattern.regex, plan.spec);
        const std::vector<std::string> names = tensor_names(plan.spec);
        const int64_t found = matches(pattern.regex, names);
        if (found == 0 || found == static_cast<int64_t>(names.size())) continue;
        throw ConfigError(fmt::format(
            "{}: {} matches only some of the {} tensors of {}, which are one parameter; match all of them or none",
            argument, quoted(pattern.text), names.size(), plan.spec.name));
      }
      if (is_used) continue;
      throw ConfigError(fmt::format("{}: {} matches no parameter that is trained; names are like {}", argument,
                                    quoted(pattern.text), all.empty() ? "none" : all.front().spec.name));
    }
  }
}

}  // namespace concord
