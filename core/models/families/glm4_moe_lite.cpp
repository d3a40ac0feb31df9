// GLM 4.7 Flash: the latent attention of DeepSeek V3 with the experts of GLM 4.5. As in transformers, MTP layers in the
// files are not used by default.
#include <fmt/core.h>

#include "core/models/families/family.h"

namespace concord {
namespace {

// The first layer is dense unless the file lists all layers.
void read_layer_types(const ConfigReader& read, ModelConfig& model) {
  std::vector<bool>& sparse = model.experts.sparse;
  const std::vector<std::string> types = read.texts("mlp_layer_types");
  if (read.has("mlp_layer_types") && types.size() != sparse.size()) {
    read.refuse("mlp_layer_types", fmt::format("has {} entries, but needs one for each of the {} of num_hidden_layers",
                                               types.size(), sparse.size()));
  }
  for (size_t i = 0; i < sparse.size(); ++i) {
    sparse[i] = types.empty() ? i > 0 : types[i] == "sparse";
    if (types.empty() || sparse[i] || types[i] == "dense") continue;
    read.refuse("mlp_layer_types", fmt::format("names '{}'; supported are dense and sparse", types[i].substr(0, 40)));
  }
}

void describe_glm4_moe_lite(const ConfigReader& read, ModelConfig& model) {
  model.rms_norm_eps = read.positive("rms_norm_eps", 1e-5);
  read_latent_attention(
      read, model,
      {.q_lora_rank = 768, .kv_lora_rank = 512, .qk_nope_head_dim = 192, .qk_rope_head_dim = 64, .v_head_dim = 256});
  read_deepseek_experts(read, model,
                        {.counts = {.num_experts = 64, .num_experts_per_tok = 4, .moe_intermediate_size = 1536},
                         .n_group = 1,
                         .topk_group = 1,
                         .routed_scaling_factor = 1.8,
                         .first_k_dense_replace = 1});
  read_layer_types(read, model);
}

}  // namespace

extern const Family kGlm4MoeLite;
const Family kGlm4MoeLite{.model_type = "glm4_moe_lite",
                          .architecture = "Glm4MoeLiteForCausalLM",
                          .default_key_value_heads = 0,
                          .default_head_dim = 64,
                          .describe = &describe_glm4_moe_lite,
                          .scoring_architecture = ""};

}  // namespace concord
