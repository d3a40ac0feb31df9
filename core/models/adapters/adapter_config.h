// A LoRA adapter as described by peft's adapter_config.json: which linear layers of a frozen model get LoRA matrices A
// and B, and their rank. Needs no libtorch. Pure values; threads: any.
//
// Modules have their Hugging Face names, "model.layers.0.self_attn.q_proj". As in peft, a module is a target if a given
// name equals its name or the part after a '.', or if the pattern matches all of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace concord {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterStem = "adapter_model";        // base name of the weight files
inline constexpr const char* kAdapterPrefix = "base_model.model.";  // prefix of tensor names
inline constexpr const char* kAllLinear = "all-linear";             // target: all linear layers except the output layer

inline constexpr const char* kPlainInit = "true";  // init_lora_weights: not derived from the weights

// Returns N of pissa_niter_N; nullopt for other values of init_lora_weights.
std::optional<int64_t> pissa_iterations(std::string_view init);

// Settings of an adapter, named as in adapter_config.json.
struct AdapterConfig {
  int64_t r = 8;
  double lora_alpha = 16;
  double lora_dropout = 0;
  bool use_rslora = false;  // the scale is alpha / sqrt(r) instead of alpha / r
  // DoRA: the rows of W + scale * B A are scaled to trained lengths.
  bool use_dora = false;
  // "true": A random, B 0. Or pissa, pissa_niter_N, olora (lora_init.h), which change the base weights too. Adapters in
  // files always apply to unchanged weights.
  std::string init_lora_weights = kPlainInit;
  std::vector<std::string> target_modules;   // names, or kAllLinear alone
  std::string target_pattern;                // a regular expression instead of names; target_modules as text in files
  std::vector<std::string> exclude_modules;  // names to exclude from the targets
  // Names, or ends of names, of tensors that get A and B although they are not a module's weight: experts of GPT-OSS.
  std::vector<std::string> target_parameters;
  // Ranks and alphas by a regular expression for the end of a module's name. The first match wins.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::string> modules_to_save;  // ends of the names of modules that are trained whole
  std::string base_model;                    // base_model_name_or_path
  // Folders of adapters that were merged into the base model before this one was trained. Not a key of peft.
  std::vector<std::string> merged_adapters;

  bool modifies_base_weights() const { return init_lora_weights != kPlainInit; }
  bool operator==(const AdapterConfig&) const = default;
};

// Rank and scale of the LoRA matrices of one module.
struct LowRankShape {
  int64_t rank;
  double scale;
};

// Finds the LoRA rank and scale of each module of a model. The constructor throws ConfigError for numbers out of range
// and invalid regular expressions.
class AdapterModules {
 public:
  explicit AdapterModules(AdapterConfig config);
  const AdapterConfig& config() const { return config_; }
  std::optional<LowRankShape> find(const std::string& module) const;  // nullopt: LoRA does not adapt |module|
  std::optional<LowRankShape> find_parameter(const std::string& parameter) const;  // by target_parameters
  // Returns for each of the |parameters| of one module the module that peft stores its A and B under; empty unless it
  // is a target. peft wraps the module for each target: all but the last are in its base_layer.
  std::vector<std::string> wrappers_of(const std::vector<std::string>& parameters) const;
  bool saves(const std::string& module) const;  // whether |module| is in modules_to_save

 private:
  LowRankShape shape_of(const std::string& name) const;

  AdapterConfig config_;
  std::optional<std::regex> pattern_;
  std::vector<std::regex> ranks_, alphas_;
};

// Returns |config| with kAllLinear replaced by module names. |modules|: the model's modules that LoRA can adapt;
// |whole|: those that can be in modules_to_save; |parameters|: those that can be target_parameters. Throws ConfigError,
// listing the modules, if a name or the pattern matches none, or if a module is both a target and in modules_to_save.
AdapterConfig with_targets(AdapterConfig config, const std::vector<std::string>& modules,
                           const std::vector<std::string>& whole = {}, const std::vector<std::string>& parameters = {});

// Stores the user's |targets| in |config|: kAllLinear, names, or regular expressions (texts with one of
// \ ( ) [ ] * + ? | ^ $), which are combined into target_pattern.
void set_targets(const std::vector<std::string>& targets, AdapterConfig* config);

// Parses |json|, the text of |file|. Unknown keys are ignored. Throws ConfigError, with the file, the key and the
// allowed values, for adapters that are not supported: methods other than LoRA, biases and similar.
AdapterConfig parse_adapter_config(std::string_view json, const std::string& file);
AdapterConfig read_adapter_config(const std::filesystem::path& folder);
bool has_adapter(const std::filesystem::path& folder);
// Returns the base name of the weight files in |folder|: an adapter's or a model's.
std::string weights_stem(const std::filesystem::path& folder);
// Returns the config to store in files: for pissa and olora a plain LoRA of twice the rank with the same scale.
AdapterConfig saved_form(AdapterConfig config);
// Returns adapter_config.json as peft writes it. |config| must be a saved_form().
std::string to_json(const AdapterConfig& config);

// Returns the folder of the base model that the adapter in |folder| was trained on: its base_model_name_or_path,
// absolute or relative to |folder|. Throws ConfigError if it does not exist.
std::string base_folder_of(const std::filesystem::path& folder);

}  // namespace concord
