// The architecture of a model: the config.json of a Hugging Face folder, read, completed and checked. Needs no
// libtorch.
//
// Both spellings of these files are supported: that of transformers 4 and the hub (rope_theta, rope_scaling,
// torch_dtype) and that of transformers 5 (rope_parameters, dtype, layer_types). A missing key has the default of
// transformers. core/models/families/ holds what is special about each family; the rest of the program uses only the
// values here, never model_type. Pure values; threads: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/models/delta_config.h"
#include "core/models/expert_config.h"
#include "core/models/latent_config.h"
#include "core/models/vision/vision_config.h"
#include "core/ops/attention/rope_settings.h"
#include "core/ops/gated_activation.h"

namespace concord {

// The norms of a layer, by the names that its files give them; empty: it has none there.
struct LayerNorms {
  std::string before_attention = "input_layernorm";
  std::string after_attention;  // norm of the attention output
  std::string before_mlp = "post_attention_layernorm";
  std::string after_mlp;
};

// A weight of a network that a program provides (core/models/families/module_config.h).
struct ModuleParameter {
  std::string name;
  std::vector<int64_t> shape;         // global
  int64_t layer = 0;                  // the part of the network that it belongs to
  std::optional<int64_t> split = {};  // dimension that is split over tp; none: replicated
  bool partial_over_tp = false;       // as in Parameter
  bool frozen = false;
};

// Named as in config.json if it has a name there.
struct ModelConfig {
  std::string model_type;    // "qwen2"
  std::string architecture;  // "Qwen2ForCausalLM"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of a layer without experts
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;  // queries and keys; values too, unless attention is latent
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;  // the output layer's weight is the embedding's
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention's output layer
  bool mlp_bias = false;
  bool qk_norm = false;            // queries and keys are normed, before rope: head by head,
  bool qk_norm_all_heads = false;  // or all heads of a token together
  bool qk_norm_after_rope = false;
  std::string q_norm = "q_norm";  // names of these norms in files
  std::string k_norm = "k_norm";
  bool attention_gate = false;  // q_proj makes a gate after each query head: outputs are multiplied by its sigmoid
  LayerNorms norms;
  bool norms_plus_one = false;    // norms multiply by 1 + their weight
  bool fused_qkv = false;         // in files q, k, v are one tensor, qkv_proj
  bool fused_gate_up = false;     // in files gate, up are one tensor, gate_up_proj
  bool interleaved_rope = false;  // pairs are neighbours, not half a head apart
  std::vector<int64_t> windows;   // for each layer the keys that a query sees, itself among them; 0: all before it
  std::vector<bool> rotated;      // for each layer whether rope is applied to its queries and keys; empty: to all
  bool sinks = false;             // each head has one more key, of value 0, whose score is a parameter
  GatedActivation activation;     // of MLPs and experts
  double embedding_multiplier = 1;
  bool rounds_embedding_multiplier = false;  // to the type of the weights
  double residual_multiplier = 1;            // factor of the outputs of attention and MLP
  // Queries at position p are multiplied by 1 + beta ln(1 + floor(p / rope.original_max_position_embeddings)).
  double query_scaling_beta = 0;
  double attention_multiplier = 0;     // factor of the scores; 0: 1 / sqrt(head_dim)
  double attn_logit_softcapping = 0;   // scores are cap tanh(score / cap); 0: not capped
  double final_logit_softcapping = 0;  // logits are cap tanh(logit / cap); 0: not capped
  double logits_scaling = 1;           // logits are divided by it
  double attention_dropout = 0;        // in training
  // A reward model: score.weight maps each token to one number instead of logits. Embeddings are not tied.
  bool is_reward_model = false;
  int64_t num_nextn_predict_layers = 0;     // MTP layers stored in the files
  int64_t mtp_layers = 0;                   // MTP layers in use
  ExpertConfig experts;                     // routed experts, if the family has them
  LatentConfig latent;                      // latent attention, if the family has it
  DeltaConfig delta;                        // gated delta nets, if the family has them
  VisionConfig vision;                      // the tower of a model with images
  std::vector<std::string> unused_tensors;  // name prefixes of tensors in files that the model does not use
  // Rows and columns of the blocks that share a scale, if weights in files may be FP8; empty: they may not.
  std::vector<int64_t> weight_block_size;
  RopeSettings rope;                        // includes max_position_embeddings and the rotated head_dim
  std::optional<RopeSettings> window_rope;  // rope of layers with a window, if it differs
  std::vector<ModuleParameter> module;      // the weights of a network of a program; empty: a model of a family
  std::string dtype = "float32";            // float32, bfloat16, float16 or float64: what the weights were saved in
  std::string text;                         // the file as it was read, for saving the model again
  // The file of the model with images that this one is the text part of; empty: it is a text model.
  std::string whole_text;

  int64_t window_of(int64_t layer) const { return layer < num_hidden_layers ? windows[static_cast<size_t>(layer)] : 0; }
  bool rotates(int64_t layer) const {
    return layer >= static_cast<int64_t>(rotated.size()) || rotated[static_cast<size_t>(layer)];
  }
  // Returns the number of key heads per tensor-parallel rank: its share, or one head that several ranks share.
  int64_t kv_heads_of_rank(int64_t tp) const { return tp > num_key_value_heads ? 1 : num_key_value_heads / tp; }
  int64_t value_dim() const { return latent.used() ? latent.v_head_dim : head_dim; }  // of a value head
};

// |json| is the text of |file|, which errors name. Throws ConfigError, with the file, the key, its value and what is
// allowed, for anything invalid: no JSON, nested deeper than 32, a wrong type, a size out of range or that
// does not divide, an unknown model_type, architecture, rope type or activation, unsupported features.
// Any text is safe: it ends in a config that describes a model of at most kMaxParameters, or in ConfigError.
ModelConfig parse_model_config(std::string_view json, const std::string& file);

// Returns whether |path_or_text| is the text of a config.json itself instead of its path.
inline bool is_config_text(std::string_view path_or_text) { return path_or_text.starts_with('{'); }

// Reads |path|, a config.json or a folder that has one, or parses it if it is the text itself. Throws ConfigError as
// well if it cannot be read.
ModelConfig read_model_config(const std::filesystem::path& path);

// The reward model that begins as |config| does: transformers' class for classifying sequences, with one label. Itself
// if it is one already.
ModelConfig reward_model_config(const ModelConfig& config);

// Returns |text|, a config.json, for weights that are saved in |dtype|. If the type differs, changes it under both of
// its names, also in nested models, or adds torch_dtype, which all versions of transformers read. Removes
// quantization_config, since weights are saved unquantised. Text that is not a JSON object is returned unchanged.
std::string with_dtype(const std::string& text, const std::string& dtype);

// Returns |config| with |layers| MTP layers in use. Throws ConfigError if the model has fewer.
ModelConfig with_mtp(ModelConfig config, int64_t layers);

// Elements of all its weights; a tied output layer counts once.
int64_t parameter_count(const ModelConfig& config);
inline constexpr int64_t kMaxParameters = int64_t{1} << 50;

// The values of model_type that can be read, "llama, mistral, ...".
std::string known_model_types();

}  // namespace concord
