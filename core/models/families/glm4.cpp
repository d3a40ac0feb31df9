// GLM 4: four norms in a layer, rope on neighbouring pairs of the first half of each head, gate and up in one tensor.
#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_glm4(const ConfigReader& read, ModelConfig& model) {
  model.qkv_bias = read.flag("attention_bias", true);
  model.rms_norm_eps = read.positive("rms_norm_eps", 1.5625e-7);
  model.fused_gate_up = true;
  model.interleaved_rope = true;
  model.norms = {.before_attention = "input_layernorm",
                 .after_attention = "post_self_attn_layernorm",
                 .before_mlp = "post_attention_layernorm",
                 .after_mlp = "post_mlp_layernorm"};
}

}  // namespace

extern const Family kGlm4;
const Family kGlm4{"glm4", "Glm4ForCausalLM", 2, 128, &describe_glm4, 10000, 0.5};

}  // namespace concord
