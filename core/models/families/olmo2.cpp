// OLMo 2: norms after attention and MLP instead of before, and over all heads of q and of k together.
#include "core/models/families/family.h"

namespace concord {

void read_olmo(const ConfigReader& read, ModelConfig& model) {
  read_attention_bias(read, model);
  model.rms_norm_eps = read.positive("rms_norm_eps", 1e-5);
  model.qk_norm_all_heads = true;
  model.norms = {.before_attention = "",
                 .after_attention = "post_attention_layernorm",
                 .before_mlp = "",
                 .after_mlp = "post_feedforward_layernorm"};
}

extern const Family kOlmo2;
const Family kOlmo2{"olmo2", "Olmo2ForCausalLM", 0, 0, &read_olmo};

}  // namespace concord
