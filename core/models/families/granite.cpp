// Granite 3: Llama with factors for embeddings, residuals, scores and logits.
#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_granite(const ConfigReader& read, ModelConfig& model) {
  read_attention_bias(read, model);
  model.mlp_bias = read.flag("mlp_bias", false);
  model.embedding_multiplier = read.positive("embedding_multiplier", 1);
  model.residual_multiplier = read.positive("residual_multiplier", 1);
  model.attention_multiplier = read.positive("attention_multiplier", 1);
  model.logits_scaling = read.positive("logits_scaling", 1);
}

}  // namespace

extern const Family kGranite;
const Family kGranite{.model_type = "granite",
                      .architecture = "GraniteForCausalLM",
                      .default_key_value_heads = 0,
                      .default_head_dim = 0,
                      .describe = &describe_granite,
                      .scoring_architecture = ""};

}  // namespace concord
