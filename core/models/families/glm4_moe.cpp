// GLM 4.5 and 4.6: rope on the first half of each head, optional norms of q and k, experts with sigmoid scores and a
// bias for the choice only, a shared expert without a gate, and a few dense layers before the first with experts. As in
// transformers, MTP layers in the files are not used by default.
#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_glm4_moe(const ConfigReader& read, ModelConfig& model) {
  model.qkv_bias = read.flag("attention_bias", false);
  model.rms_norm_eps = read.positive("rms_norm_eps", 1e-5);
  model.qk_norm = read.flag("use_qk_norm", false);
  read_deepseek_experts(read, model,
                        {.counts = {.num_experts = 128, .num_experts_per_tok = 8, .moe_intermediate_size = 1408},
                         .n_group = 1,
                         .topk_group = 1,
                         .routed_scaling_factor = 1,
                         .first_k_dense_replace = 1});
}

}  // namespace

extern const Family kGlm4Moe;
const Family kGlm4Moe{.model_type = "glm4_moe",
                      .architecture = "Glm4MoeForCausalLM",
                      .default_key_value_heads = 8,
                      .default_head_dim = 0,
                      .describe = &describe_glm4_moe,
                      .default_partial_rotary_factor = 0.5,
                      .scoring_architecture = ""};

}  // namespace concord
