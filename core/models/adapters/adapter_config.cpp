#include "core/models/adapters/adapter_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/config_error.h"
#include "core/base/files/hub_cache.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "core/base/refused_combinations.h"

namespace concord {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxBytes = 1 << 20;
constexpr size_t kMaxPattern = 4096;
constexpr int64_t kMaxRank = 1 << 16;
constexpr int64_t kMaxIterations = 1000;
constexpr std::string_view kOutput = "lm_head";

bool is_named(const std::string& module, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return module == name || module.ends_with("." + name); });
}

std::regex compiled(const std::string& pattern) {
  if (pattern.size() > kMaxPattern) {
    throw ConfigError(fmt::format("the pattern {} is longer than {} letters", quoted(pattern), kMaxPattern));
  }
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    throw ConfigError(fmt::format("{} is not a regular expression: {}; give names of modules, or correct it",
                                  quoted(pattern), one_line(error.what())));
  }
}
// peft's rule for the keys of rank_pattern and alpha_pattern.
std::regex compiled_end(const std::string& key) { return compiled("(.*\\.)?(" + key + ")$"); }

void check_rank(int64_t rank, std::string_view what) {
  if (rank >= 1 && rank <= kMaxRank) return;
  throw ConfigError(fmt::format("{} is {}; must be from 1 to {}", what, rank, kMaxRank));
}
void check_alpha(double alpha, std::string_view what) {
  if (std::isfinite(alpha) && alpha != 0) return;
  throw ConfigError(fmt::format("{} is {:g}; must be a number other than 0", what, alpha));
}

void check_init(const AdapterConfig& config) {
  const std::string& init = config.init_lora_weights;
  if (!config.modifies_base_weights()) return;
  if (init != "pissa" && init != "olora" && !pissa_iterations(init)) {
    throw ConfigError(
        fmt::format("init_lora_weights is {}; must be true, pissa, pissa_niter_N with N from 1 to {}, or olora",
                    quoted(init), kMaxIterations));
  }
  if (config.use_dora) {
    throw ConfigError(
        refusal_message(Refused::dora_with_init, fmt::format("use_dora with init_lora_weights {}", init)));
  }
  const bool negative = config.lora_alpha < 0 || std::any_of(
                                                     config.alpha_pattern.begin(), config.alpha_pattern.end(),
                                                     [](const auto& each) { return each.second < 0; });
  if (negative) throw ConfigError(fmt::format("init_lora_weights {} needs a positive lora_alpha", init));
}

std::string last_word(const std::string& module) { return module.substr(module.rfind('.') + 1); }

std::vector<std::string> last_words(const std::vector<std::string>& modules) {
  std::set<std::string> words;
  for (const std::string& module : modules) words.insert(last_word(module));
  return {words.begin(), words.end()};
}

void check_saved(const AdapterModules& adapter, const std::vector<std::string>& modules,
                 const std::vector<std::string>& whole) {
  for (const std::string& name : adapter.config().modules_to_save) {
    if (std::any_of(whole.begin(), whole.end(), [&](const auto& module) { return module.ends_with(name); })) continue;
    throw ConfigError(
        fmt::format("modules_to_save: {} is not a module that can be trained whole with an adapter; choose from {} (an "
                    "embedding that is the output layer too is not among them, and linear layers get a pair by "
                    "lora_target)",
                    quoted(name), fmt::join(last_words(whole), ", ")));
  }
  for (const std::string& module : modules) {
    if (!adapter.saves(module)) continue;
    const bool is_whole = std::find(whole.begin(), whole.end(), module) != whole.end();
    if (is_whole && !adapter.find(module)) continue;
    throw ConfigError(fmt::format("modules_to_save includes {}, which {}; leave it out", quoted(module),
                                  is_whole ? "is a target of the adapter too" : "can only have a pair (lora_target)"));
  }
}

// ------------------------------------------------------------------------------------------------------------- files

// One key after the other, each with the file and its name in errors.
class Fields {
 public:
  Fields(const Json& json, const std::string& file) : json_(json), file_(file) {}

  [[noreturn]] void refuse(const char* key, const std::string& allowed) const {
    throw ConfigError(fmt::format("{}: {} is {}; {}", file_, key, one_line(json_.at(key).dump(), 200), allowed));
  }
  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  bool is_text(const char* key) const { return json_.at(key).is_string(); }
  double number(const char* key, double otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_.at(key).is_number()) refuse(key, "must be a number");
    return json_.at(key).get<double>();
  }
  int64_t integer(const char* key, int64_t otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_.at(key).is_number_integer()) refuse(key, "must be a whole number");
    return json_.at(key).get<int64_t>();
  }
  bool flag(const char* key) const {
    if (!has(key)) return false;
    if (!json_.at(key).is_boolean()) refuse(key, "must be true or false");
    return json_.at(key).get<bool>();
  }
  std::string text(const char* key) const {
    if (!has(key)) return "";
    if (!json_.at(key).is_string()) refuse(key, "must be a text");
    return json_.at(key).get<std::string>();
  }
  std::vector<std::string> names(const char* key) const {
    std::vector<std::string> names;
    if (!has(key)) return names;
    if (!json_.at(key).is_array()) refuse(key, "must be a list of names");
    for (const Json& each : json_.at(key)) {
      if (!each.is_string() || each.get_ref<const std::string&>().empty()) refuse(key, "must be a list of names");
      names.push_back(each.get<std::string>());
    }
    return names;
  }
  template <class Value>
  std::vector<std::pair<std::string, Value>> pattern(const char* key) const {
    std::vector<std::pair<std::string, Value>> result;
    if (!has(key)) return result;
    if (!json_.at(key).is_object()) refuse(key, "must map patterns to numbers");
    for (const auto& [name, value] : json_.at(key).items()) {
      if (!value.is_number() || (std::is_same_v<Value, int64_t> && !value.is_number_integer())) {
        refuse(key, "must map patterns to numbers");
      }
      result.emplace_back(name, value.template get<Value>());
    }
    return result;
  }
  // Throws unless |key|, which changes the computation of an adapter, is unset or disabled.
  void require_off(const char* key, const std::string& why) const {
    if (!has(key)) return;
    const Json& value = json_.at(key);
    const bool off =
        value == false || value == "none" || value == 0 || ((value.is_array() || value.is_object()) && value.empty());
    if (!off) refuse(key, why);
  }

 private:
  const Json& json_;
  const std::string& file_;
};

void refuse_other_methods(const Fields& fields) {
  if (fields.has("peft_type") && fields.text("peft_type") != "LORA") {
    fields.refuse("peft_type", "only LORA adapters can be used");
  }
  const std::string unsupported = "is not supported; use an adapter without it";
  for (const char* key :
       {"bias", "lora_bias", "fan_in_fan_out", "layers_to_transform", "layers_pattern",
        "trainable_token_indices", "use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config",
        "layer_replication", "velora_config", "monteclora_config"}) {
    fields.require_off(key, unsupported);
  }
  fields.require_off("target_parameters", refusal_message(Refused::experts_in_one_tensor));
  // With these the files are of weights that peft changed as it made the adapter.
  if (!fields.has("init_lora_weights") || !fields.is_text("init_lora_weights")) return;
  const std::string init = fields.text("init_lora_weights");
  for (const char* changing : {"pissa", "olora", "corda", "loftq", "lora_ga"}) {
    if (!init.starts_with(changing)) continue;
    fields.refuse("init_lora_weights",
                  "the adapter is not one of the model's own weights; save it with peft's "
                  "path_initial_model_for_weight_conversion, or merge it there");
  }
}

}  // namespace

std::optional<int64_t> pissa_iterations(std::string_view init) {
  constexpr std::string_view kBefore = "pissa_niter_";
  int64_t count = 0;
  if (!init.starts_with(kBefore)) return std::nullopt;
  const char* const end = init.data() + init.size();
  const auto [next, error] = std::from_chars(init.data() + kBefore.size(), end, count);
  return error == std::errc() && next == end && count >= 1 && count <= kMaxIterations ? std::optional(count)
                                                                                      : std::nullopt;
}

// ------------------------------------------------------------------------------------------------------------ modules

AdapterModules::AdapterModules(AdapterConfig config) : config_(std::move(config)) {
  check_rank(config_.r, "the rank of the adapter");
  check_alpha(config_.lora_alpha, "lora_alpha");
  if (!(config_.lora_dropout >= 0 && config_.lora_dropout < 1)) {
    throw ConfigError(fmt::format("lora_dropout is {:g}; must be >= 0 and < 1", config_.lora_dropout));
  }
  check_init(config_);
  if (!config_.target_pattern.empty()) pattern_ = compiled(config_.target_pattern);
  for (const auto& [key, rank] : config_.rank_pattern) {
    check_rank(rank, fmt::format("the rank of {} in rank_pattern", quoted(key)));
    ranks_.push_back(compiled_end(key));
  }
  for (const auto& [key, alpha] : config_.alpha_pattern) {
    check_alpha(alpha, fmt::format("the alpha of {} in alpha_pattern", quoted(key)));
    alphas_.push_back(compiled_end(key));
  }
}

std::optional<LowRankShape> AdapterModules::find(const std::string& module) const {
  const bool all = config_.target_modules == std::vector<std::string>{kAllLinear};
  const bool is_target = pattern_ ? std::regex_match(module, *pattern_)
                         : all    ? module != kOutput
                                  : is_named(module, config_.target_modules);
  if (!is_target || is_named(module, config_.exclude_modules)) return std::nullopt;
  int64_t rank = config_.r;
  double alpha = config_.lora_alpha;
  for (size_t i = ranks_.size(); i-- > 0;) {
    if (std::regex_match(module, ranks_[i])) rank = config_.rank_pattern[i].second;
  }
  for (size_t i = alphas_.size(); i-- > 0;) {
    if (std::regex_match(module, alphas_[i])) alpha = config_.alpha_pattern[i].second;
  }
  const auto size = static_cast<double>(rank);
  return LowRankShape{rank, alpha / (config_.use_rslora ? std::sqrt(size) : size)};
}

// peft's rule: an end of the name, not of a word in it only.
bool AdapterModules::saves(const std::string& module) const {
  return std::any_of(config_.modules_to_save.begin(), config_.modules_to_save.end(),
                     [&](const std::string& name) { return module.ends_with(name); });
}

AdapterConfig with_targets(AdapterConfig config, const std::vector<std::string>& modules,
                           const std::vector<std::string>& whole) {
  const auto refuse = [&](const std::string& given) {
    throw ConfigError(
        fmt::format("{} is not a linear layer that LoRA can adapt; choose from {} (in full: {}, ...); {} "
                    "stands for all of them but {}",
                    given, fmt::join(last_words(modules), ", "), modules.front(), kAllLinear, kOutput));
  };
  if (config.target_modules == std::vector<std::string>{kAllLinear}) {
    std::vector<std::string> inner;
    for (const std::string& module : modules) {
      if (module != kOutput) inner.push_back(module);
    }
    config.target_modules = last_words(inner);
  }
  const AdapterModules matcher(config);
  if (config.target_modules.empty() && config.target_pattern.empty()) refuse("nothing");
  for (const std::string& name : config.target_modules) {
    if (std::none_of(modules.begin(), modules.end(), [&](const auto& module) { return is_named(module, {name}); })) {
      refuse(fmt::format("the target {}", quoted(name)));
    }
  }
  if (std::none_of(modules.begin(), modules.end(), [&](const auto& module) { return matcher.find(module); })) {
    refuse(fmt::format("what the targets {}{} match", quoted(config.target_pattern),
                       config.exclude_modules.empty() ? "" : " without those excluded"));
  }
  check_saved(matcher, modules, whole);
  return config;
}

void set_targets(const std::vector<std::string>& targets, AdapterConfig* config) {
  const auto is_pattern = [](const std::string& each) {
    return each.find_first_of("\\()[]*+?|^$") != std::string::npos;
  };
  config->target_modules.clear();
  config->target_pattern.clear();
  if (std::none_of(targets.begin(), targets.end(), is_pattern)) {
    config->target_modules = targets;
    const bool has_all = std::find(targets.begin(), targets.end(), kAllLinear) != targets.end();
    if (has_all && targets.size() > 1) {
      throw ConfigError(
          fmt::format("lora_target is {}; {} cannot be combined with other targets: it means all linear layers but {}",
                      fmt::join(targets, ", "), kAllLinear, kOutput));
    }
    return;
  }
  for (const std::string& each : targets) {
    if (!config->target_pattern.empty()) config->target_pattern += '|';
    config->target_pattern += is_pattern(each) ? each : "(?:.*\\.)?" + each;
  }
}

// -------------------------------------------------------------------------------------------------------------- files

AdapterConfig parse_adapter_config(std::string_view json, const std::string& file) {
  const Json document = parse_json<Json>(json, file);
  if (!document.is_object()) throw ConfigError(fmt::format("{}: is not a JSON object", file));
  const Fields fields(document, file);
  refuse_other_methods(fields);
  AdapterConfig config;
  config.r = fields.integer("r", 8);
  config.lora_alpha = fields.number("lora_alpha", 8);
  config.lora_dropout = fields.number("lora_dropout", 0);
  config.use_rslora = fields.flag("use_rslora");
  config.use_dora = fields.flag("use_dora");
  if (fields.has("target_modules") && document.at("target_modules").is_string()) {
    const std::string text = fields.text("target_modules");
    if (text == kAllLinear) config.target_modules = {text};
    if (text != kAllLinear) config.target_pattern = text;
  } else {
    config.target_modules = fields.names("target_modules");
  }
  if (config.target_modules.empty() && config.target_pattern.empty()) {
    throw ConfigError(fmt::format("{}: has no target_modules; give the names of the layers that it is for", file));
  }
  config.exclude_modules = fields.names("exclude_modules");
  config.rank_pattern = fields.pattern<int64_t>("rank_pattern");
  config.alpha_pattern = fields.pattern<double>("alpha_pattern");
  config.modules_to_save = fields.names("modules_to_save");
  config.base_model = fields.text("base_model_name_or_path");
  config.merged_adapters = fields.names("merged_adapters");
  try {
    AdapterModules{config};
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", file, error.what()));
  }
  return config;
}

AdapterConfig read_adapter_config(const std::filesystem::path& folder) {
  const std::string file = folder / kAdapterConfigFile;
  return parse_adapter_config(
      InputFile(file, "give a folder with an adapter as peft writes it").read(kMaxBytes, "an adapter's config"), file);
}

bool has_adapter(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder / kAdapterConfigFile, ignored);
}

std::string weights_stem(const std::filesystem::path& folder) { return has_adapter(folder) ? kAdapterStem : "model"; }

AdapterConfig saved_form(AdapterConfig config) {
  if (!config.modifies_base_weights()) return config;
  const double factor = config.use_rslora ? std::sqrt(2.0) : 2;  // alpha / rank or alpha / sqrt(rank) stays
  config.init_lora_weights = kPlainInit;
  config.r *= 2;
  config.lora_alpha *= factor;
  for (auto& [key, rank] : config.rank_pattern) rank *= 2;
  for (auto& [key, alpha] : config.alpha_pattern) alpha *= factor;
  return config;
}

std::string to_json(const AdapterConfig& config) {
  const auto number = [](double value) {
    return value == std::floor(value) && std::abs(value) < 1e15 ? Json(static_cast<int64_t>(value)) : Json(value);
  };
  Json ranks = Json::object(), alphas = Json::object();
  for (const auto& [key, rank] : config.rank_pattern) ranks[key] = rank;
  for (const auto& [key, alpha] : config.alpha_pattern) alphas[key] = number(alpha);
  Json document = {
      {"alpha_pattern", alphas},
      {"base_model_name_or_path", config.base_model},
      {"bias", "none"},
      {"exclude_modules", config.exclude_modules.empty() ? Json() : Json(config.exclude_modules)},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"lora_alpha", number(config.lora_alpha)},
      {"lora_dropout", config.lora_dropout},
      {"modules_to_save", config.modules_to_save.empty() ? Json() : Json(config.modules_to_save)},
      {"peft_type", "LORA"},
      {"r", config.r},
      {"rank_pattern", ranks},
      {"target_modules", config.target_pattern.empty() ? Json(config.target_modules) : Json(config.target_pattern)},
      {"task_type",
       std::ranges::find(config.modules_to_save, "score") == config.modules_to_save.end() ? "CAUSAL_LM" : "SEQ_CLS"},
      {"use_dora", config.use_dora},
      {"use_rslora", config.use_rslora}};
  if (!config.merged_adapters.empty()) document["merged_adapters"] = config.merged_adapters;
  return document.dump(2) + "\n";
}

std::string base_folder_of(const std::filesystem::path& folder) {
  const std::string base = read_adapter_config(folder).base_model;
  std::error_code ignored;
  for (const std::filesystem::path& path : {std::filesystem::path(base), folder / base}) {
    if (!base.empty() && std::filesystem::is_directory(path, ignored)) return path.string();
  }
  if (const std::optional<std::string> cached = hub_snapshot(base)) return *cached;
  throw ConfigError(
      fmt::format("{} holds an adapter whose base_model_name_or_path {} is not a folder here, nor in HF's cache; give "
                  "the base model as --model and the adapter as --adapter_name_or_path",
                  folder.string(), quoted(base)));
}

}  // namespace concord
