// What a model is: the config.json of a Hugging Face folder, read, completed and checked. Needs no libtorch.
//
// Both spellings of these files are read: that of transformers 4 and the hub (rope_theta, rope_scaling, torch_dtype)
// and that of transformers 5 (rope_parameters, dtype, layer_types). A missing key has the default that transformers
// gives it. A family (core/models/families/) says what is special about it; the rest of the program uses only the
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
#include "core/ops/attention/rope_settings.h"
#include "core/ops/gated_activation.h"

namespace concord {

// The norms of a layer, by the names that its files give them; empty: it has none there.
struct LayerNorms {
  std::string before_attention = "input_layernorm";
  std::string after_attention;  // of what attention adds to its input
  std::string before_mlp = "post_attention_layernorm";
  std::string after_mlp;
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
  int64_t head_dim = 0;  // of queries and keys; of values too, unless attention is latent
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;  // the output layer's weight is the embedding's
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention's output layer
  bool mlp_bias = false;
  bool qk_norm = false;            // queries and keys are normed, before rope: head by head,
  bool qk_norm_all_heads = false;  // or all heads of a token together
  bool attention_gate = false;     // q_proj makes a gate after each query head: outputs are multiplied by its sigmoid
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
  double residual_multiplier = 1;            // of what attention and MLP add to their input
  double attention_multiplier = 0;           // of the scores; 0: 1 / sqrt(head_dim)
  double attn_logit_softcapping = 0;         // scores are cap tanh(score / cap); 0: as they are
  double final_logit_softcapping = 0;        // the same of logits
  double logits_scaling = 1;                 // logits are divided by it
  double attention_dropout = 0;              // in training
  // A reward model: one number for each token, by score.weight, instead of logits. Then nothing is tied.
  bool scores = false;
  int64_t num_nextn_predict_layers = 0;     // that files may have after the last: they predict further tokens,
  int64_t mtp_layers = 0;                   // so many of them are used
  ExpertConfig experts;                     // none unless the family has them
  LatentConfig latent;                      // the same
  DeltaConfig delta;                        // the same
  std::vector<std::string> unused_tensors;  // what the names of those begin with that files may have beyond the model's
  // Weights in files may be 8-bit floats with a scale for each block of so many rows and columns; empty: they are not.
  std::vector<int64_t> weight_block_size;
  RopeSettings rope;                        // max_position_embeddings and the head_dim that is rotated among it
  std::optional<RopeSettings> window_rope;  // of layers with a window, where it is another
  std::string dtype = "float32";            // float32, bfloat16, float16 or float64: what the weights were saved in
  std::string text;                         // the file as it was read, for saving the model again

  int64_t window_of(int64_t layer) const { return layer < num_hidden_layers ? windows[static_cast<size_t>(layer)] : 0; }
  bool rotates(int64_t layer) const {
    return layer >= static_cast<int64_t>(rotated.size()) || rotated[static_cast<size_t>(layer)];
  }
  // Key heads that a rank of |tp| computes with: its share, or one that it shares with others where there are fewer.
  int64_t kv_heads_of_rank(int64_t tp) const { return tp > num_key_value_heads ? 1 : num_key_value_heads / tp; }
  int64_t value_dim() const { return latent.used() ? latent.v_head_dim : head_dim; }  // of a value head
};

// |json| is the text of |file|, which errors name. Throws ConfigError, with the file, the key, its value and what is
// allowed, for anything invalid: no JSON, nested deeper than 32, a wrong type, a size out of range or that
// does not divide, an unknown model_type, architecture, rope type or activation, unsupported features.
// Any text is safe: it ends in a config that describes a model of at most kMaxParameters, or in ConfigError.
ModelConfig parse_model_config(std::string_view json, const std::string& file);

// Reads |path|, a config.json or a folder that has one. Throws ConfigError as well if it cannot be read.
ModelConfig read_model_config(const std::filesystem::path& path);

// The reward model that begins as |config| does: transformers' class for classifying sequences, with one label. Itself
// if it is one already.
ModelConfig reward_model_config(const ModelConfig& config);

// |text| of a config.json for weights that are saved in |dtype|: unchanged if it says so, else with both of its names
// for that changed, also in the models within it, or torch_dtype, which all versions of transformers read, added; and
// without quantization_config, since weights are saved as they are. Text that is not a JSON object is returned
// unchanged.
std::string with_dtype(const std::string& text, const std::string& dtype);

// |config| with |layers| of those that predict further tokens. Throws ConfigError if it does not have so many.
ModelConfig with_mtp(ModelConfig config, int64_t layers);

// Elements of all its weights; a tied output layer counts once.
int64_t parameter_count(const ModelConfig& config);
inline constexpr int64_t kMaxParameters = int64_t{1} << 50;

// The values of model_type that can be read, "llama, mistral, ...".
std::string known_model_types();

}  // namespace concord
