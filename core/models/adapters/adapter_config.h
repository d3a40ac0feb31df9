// A LoRA adapter as peft describes it (adapter_config.json): which linear layers of a frozen model get a low-rank pair
// beside them, and of which rank. Needs no libtorch. Pure values; threads: any.
//
// A layer's module is called as in Hugging Face's models, "model.layers.0.self_attn.q_proj". It is a target as peft has
// it: where a name equals it or is its end behind a '.', or where the pattern matches all of it.
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
inline constexpr const char* kAdapterStem = "adapter_model";        // of its weights' files
inline constexpr const char* kAdapterPrefix = "base_model.model.";  // of its tensors, before the module
inline constexpr const char* kAllLinear = "all-linear";             // as a target: all but the output layer

inline constexpr const char* kPlainInit = "true";  // init_lora_weights: nothing of the weights

// N of pissa_niter_N; none for other values of init_lora_weights.
std::optional<int64_t> pissa_iterations(std::string_view init);

// Named as in adapter_config.json.
struct AdapterConfig {
  int64_t r = 8;
  double lora_alpha = 16;
  double lora_dropout = 0;
  bool use_rslora = false;  // the scale is alpha / sqrt(r) instead of alpha / r
  // DoRA: rows of W + scale * B A are scaled to a length of their own, which is trained too.
  bool use_dora = false;
  // true: A random, B 0; or pissa, pissa_niter_N, olora (core/models/adapters/lora_init.h), which change the weights
  // beside the pairs too. Not of adapters in files, which are all of unchanged weights.
  std::string init_lora_weights = kPlainInit;
  std::vector<std::string> target_modules;   // names, or kAllLinear alone
  std::string target_pattern;                // a regular expression instead of names; target_modules as text in files
  std::vector<std::string> exclude_modules;  // names that are no targets after all
  // By a regular expression for the end of a module's name: another rank, another alpha. The first that matches counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::string> modules_to_save;  // ends of the names of modules that are trained whole
  std::string base_model;                    // base_model_name_or_path
  // Folders of adapters that were added to the weights of the base model before this one was trained; peft does not
  // know them.
  std::vector<std::string> merged_adapters;

  bool modifies_base_weights() const { return init_lora_weights != kPlainInit; }
  bool operator==(const AdapterConfig&) const = default;
};

// The pair beside one module.
struct LowRankShape {
  int64_t rank;
  double scale;
};

// Finds a module's pair. Throws ConfigError for numbers out of range and patterns that are not regular
// expressions.
class AdapterModules {
 public:
  explicit AdapterModules(AdapterConfig config);
  const AdapterConfig& config() const { return config_; }
  std::optional<LowRankShape> find(const std::string& module) const;
  bool saves(const std::string& module) const;  // whether it is trained whole

 private:
  AdapterConfig config_;
  std::optional<std::regex> pattern_;
  std::vector<std::regex> ranks_, alphas_;
};

// |config| with kAllLinear replaced by the names that it stands for. |modules| are those of the model that can have a
// pair, |whole| those that can be trained whole. Throws ConfigError, with the modules there are, where a name or the
// pattern matches none of them, and for a module that is both.
AdapterConfig with_targets(AdapterConfig config, const std::vector<std::string>& modules,
                           const std::vector<std::string>& whole = {});

// |targets| of a user: kAllLinear, names, and regular expressions (what contains one of \ ( ) [ ] * + ? | ^ $), which
// become one pattern.
void set_targets(const std::vector<std::string>& targets, AdapterConfig* config);

// |json| is the text of |file|. Throws ConfigError, with the file, the key and what is allowed, for what is no adapter
// that can be computed here: another method than LoRA, biases and the like. Unknown keys are ignored.
AdapterConfig parse_adapter_config(std::string_view json, const std::string& file);
AdapterConfig read_adapter_config(const std::filesystem::path& folder);
bool has_adapter(const std::filesystem::path& folder);
// What the names of the files with a folder's weights begin with: those of an adapter, or of a model.
std::string weights_stem(const std::filesystem::path& folder);
// As it is in files: where pairs begin as a part of the weights, a plain one of twice the rank with the same scale.
AdapterConfig saved_form(AdapterConfig config);
// As peft writes it; |config| is in the form of files.
std::string to_json(const AdapterConfig& config);

// The folder with the weights that the adapter in |folder| was made for, by its base_model_name_or_path: as it stands,
// or seen from |folder|. Throws ConfigError if there is none.
std::string base_folder_of(const std::filesystem::path& folder);

}  // namespace concord
