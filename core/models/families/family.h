// A family of models: what its config.json means beyond what all have in common. A new family is one file next to this
// one, and its line in families.cpp (docs/models.md).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/models/config.h"
#include "core/models/config_reader.h"

namespace concord {

struct Family {
  const char* model_type;
  const char* architecture;
  // The values that transformers uses if the file has none. 0: key heads as heads, heads of hidden_size / heads.
  int64_t default_key_value_heads;
  int64_t default_head_dim;
  // Sets what is special about the family: biases, norms of q and k, windows. The rest of |model| has been read
  // already.
  void (*describe)(const ConfigReader& read, ModelConfig& model);
  double default_rope_theta = 10000;
  double default_partial_rotary_factor = 0;  // 0: the whole head is rotated, and the file may not say otherwise
  double default_window_rope_theta = 0;      // rope_theta of layers with a window; 0: that of other layers
  const char* activation_key = "hidden_act";
  const char* activation = "silu";  // the only one
  const char* intermediate_key = "intermediate_size";
  // model_type of a multimodal model whose text_config is of this family; it is read as a text model. Null: none.
  const char* whole_model_type = nullptr;
  const char* whole_architecture = nullptr;
  const char* text_defaults = "{}";  // the values that transformers uses if text_config has none, as JSON
  // transformers' class for classifying sequences, which reward models are. Null: |architecture| with that end; empty:
  // there is none.
  const char* scoring_architecture = nullptr;
  // The vision tower of the model with images, and the rope on three axes of its text model. Null: neither is known.
  const VisionDefaults* vision = nullptr;
};

// The values that transformers uses if the file has none.
struct ExpertDefaults {
  int64_t num_experts;
  int64_t num_experts_per_tok;
  int64_t moe_intermediate_size;
};

struct DeepseekDefaults {
  ExpertDefaults counts;
  int64_t n_group;
  int64_t topk_group;
  double routed_scaling_factor;
  int64_t first_k_dense_replace;
};

// Reads the config of a text model of |family|, except its model_type. Throws ConfigError as parse_model_config does.
ModelConfig read_model(const ConfigReader& read, const Family& family);

// Returns all supported families, sorted by name.
std::span<const Family* const> all_families();

// Reads Qwen's windows: use_sliding_window enables them; layer_types selects the layers, or if it is missing
// |windowed|(layer, max_window_layers), by default the layers starting at max_window_layers.
using WindowRule = std::function<bool(int64_t layer, int64_t max_window_layers)>;
bool from_max_window_layers(int64_t layer, int64_t max_window_layers);
void read_qwen_windows(const ConfigReader& read, ModelConfig& model,
                       const WindowRule& windowed = from_max_window_layers);
// Reads the windows of Gemma and GPT-OSS: their size is sliding_window, by default |window|; layer_types selects the
// layers, by default all except every |pattern|th.
void read_alternating_windows(const ConfigReader& read, ModelConfig& model, int64_t window, int64_t pattern);
// Defaults that differ between versions of Gemma. A cap of 0 disables it, even if the file sets one for scores.
struct GemmaDefaults {
  double score_cap, logit_cap;
  int64_t pattern;  // every Nth layer has no window
};
void read_gemma(const ConfigReader& read, ModelConfig& model, const GemmaDefaults& defaults);
// Reads what OLMo 2 and later have in common: where norms are.
void read_olmo(const ConfigReader& read, ModelConfig& model);
// Reads what both ERNIE 4.5 have in common: the dense model.
void read_ernie(const ConfigReader& read, ModelConfig& model);
// Reads the latent attention of DeepSeek V3 and similar models.
void read_latent_attention(const ConfigReader& read, ModelConfig& model, const LatentConfig& defaults);
// Sets what Mixtral and MiniMax M2 have in common: names of experts, their size, and weights that are normalized in
// fp32.
void read_mixtral_names(ModelConfig& model);
// Qwen's files with experts: which layers have them (decoder_sparse_step, mlp_only_layers) and their sizes.
void read_qwen_experts(const ConfigReader& read, ModelConfig& model, const ExpertDefaults& defaults);
// Reads the number of experts and the loss that balances them, common to all families with experts.
void read_expert_counts(const ConfigReader& read, ModelConfig& model, const ExpertDefaults& defaults);
// Reads the experts of DeepSeek V3 and similar models: sigmoid scores, a bias for the choice only, groups of experts, a
// shared expert without a gate, and a few dense layers before the first with experts.
void read_deepseek_experts(const ConfigReader& read, ModelConfig& model, const DeepseekDefaults& defaults);
// Qwen 3, Llama: one key for the biases of q, k, v and the output.
void read_attention_bias(const ConfigReader& read, ModelConfig& model);

inline constexpr IntegerRange kWindowRange{1, int64_t{1} << 40};

}  // namespace concord
