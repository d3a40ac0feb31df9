// Gemma 2: four norms in a layer, which multiply by 1 + their weight; windows on every other layer; caps on scores and
// logits; embeddings times the root of their size; gelu.
#include <cmath>

#include "core/models/families/family.h"

namespace concord {

void read_gemma(const ConfigReader& read, ModelConfig& model, const GemmaDefaults& defaults) {
  read_attention_bias(read, model);
  model.tie_word_embeddings = read.flag("tie_word_embeddings", true);
  if (read.flag("use_bidirectional_attention", false)) read.refuse("use_bidirectional_attention", "must be false");
  model.activation.kind = GatedActivation::Kind::gelu_tanh;
  model.norms_plus_one = true;
  model.norms = {.before_attention = "input_layernorm",
                 .after_attention = "post_attention_layernorm",
                 .before_mlp = "pre_feedforward_layernorm",
                 .after_mlp = "post_feedforward_layernorm"};
  model.embedding_multiplier = std::sqrt(static_cast<double>(model.hidden_size));
  model.rounds_embedding_multiplier = true;
  model.attention_multiplier = 1 / std::sqrt(read.positive("query_pre_attn_scalar", 256));
  const auto cap = [&](const char* key, double missing) {  // null: none
    return read.names(key) && !read.has(key) ? 0 : read.has(key) ? read.positive(key) : missing;
  };
  model.final_logit_softcapping = cap("final_logit_softcapping", defaults.logit_cap);
  model.attn_logit_softcapping = defaults.score_cap > 0 ? cap("attn_logit_softcapping", defaults.score_cap) : 0;
  read_alternating_windows(read, model, 4096, read.integer("sliding_window_pattern", {1, 1 << 16}, defaults.pattern));
}

namespace {

void describe_gemma2(const ConfigReader& read, ModelConfig& model) {
  read_gemma(read, model, {.score_cap = 50, .logit_cap = 30, .pattern = 2});
}

}  // namespace

extern const Family kGemma2;
const Family kGemma2{.model_type = "gemma2",
                     .architecture = "Gemma2ForCausalLM",
                     .default_key_value_heads = 4,
                     .default_head_dim = 256,
                     .describe = &describe_gemma2,
                     .activation_key = "hidden_activation",
                     .activation = "gelu_pytorch_tanh"};

}  // namespace concord
