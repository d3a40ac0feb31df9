// ERNIE 4.5 (dense): Llama with rope on neighbouring pairs, and one key for the biases of all linear layers.
#include "core/models/families/family.h"

namespace concord {

void read_ernie(const ConfigReader& read, ModelConfig& model) {
  model.qkv_bias = model.output_bias = model.mlp_bias = read.flag("use_bias", false);
  model.rms_norm_eps = read.positive("rms_norm_eps", 1e-5);
  model.tie_word_embeddings = read.flag("tie_word_embeddings", true);
  model.interleaved_rope = true;
  model.attention_dropout = 0;  // transformers does not read it here
}

extern const Family kErnie45;
const Family kErnie45{.model_type = "ernie4_5",
                      .architecture = "Ernie4_5ForCausalLM",
                      .default_key_value_heads = 2,
                      .default_head_dim = 128,
                      .describe = &read_ernie,
                      .default_rope_theta = 5e5,
                      .scoring_architecture = ""};

}  // namespace concord
