// DeepSeek V3, R1, Moonlight and Kimi K2: latent attention, experts by read_deepseek_experts. As in transformers, MTP
// layers in the files are not used by default.
#include <fmt/core.h>

#include <cmath>

#include "core/models/families/family.h"

namespace concord {
namespace {

constexpr IntegerRange kSizes{1, int64_t{1} << 24};

void read_latents(const ConfigReader& read, ModelConfig& model, const LatentConfig& defaults) {
  LatentConfig& latent = model.latent;
  const bool has_query_latent = read.has("q_lora_rank") || !read.names("q_lora_rank");  // null: it has none
  latent.q_lora_rank = has_query_latent ? read.integer("q_lora_rank", kSizes, defaults.q_lora_rank) : 0;
  latent.kv_lora_rank = read.integer("kv_lora_rank", kSizes, defaults.kv_lora_rank);
  latent.qk_nope_head_dim = read.integer("qk_nope_head_dim", kSizes, defaults.qk_nope_head_dim);
  latent.qk_rope_head_dim = read.integer("qk_rope_head_dim", kSizes, defaults.qk_rope_head_dim);
  latent.v_head_dim = read.integer("v_head_dim", kSizes, defaults.v_head_dim);
  latent.bias = read.flag("attention_bias", false);
  model.output_bias = latent.bias;
  model.head_dim = latent.qk_nope_head_dim + latent.qk_rope_head_dim;
  model.rope.head_dim = latent.qk_rope_head_dim;
  if (latent.qk_rope_head_dim % 2 != 0 || (model.rope.rope_type == RopeType::dynamic && latent.qk_rope_head_dim < 4)) {
    read.refuse("qk_rope_head_dim", "must be even, since rope rotates pairs, and at least 4 for rope type dynamic");
  }
  if (model.num_key_value_heads != model.num_attention_heads) {
    read.refuse(fmt::format("num_key_value_heads {} must be num_attention_heads {}: every head has its own keys",
                            model.num_key_value_heads, model.num_attention_heads));
  }
  const double width = static_cast<double>(std::max(model.head_dim, latent.v_head_dim));
  if (static_cast<double>(model.num_attention_heads) * width > static_cast<double>(kSizes.most)) {
    read.refuse(fmt::format("num_attention_heads {} times the {:g} elements of a head must be <= {}",
                            model.num_attention_heads, width, kSizes.most));
  }
}

// YaRN sharpens the softmax of long contexts: by its mscale_all_dim, squared, since queries and keys have it each.
double scale_of_scores(const ConfigReader& read, const ModelConfig& model) {
  const double plain = 1 / std::sqrt(static_cast<double>(model.head_dim));
  const double all_dim = model.rope.mscale_all_dim.value_or(0);
  if (model.rope.rope_type == RopeType::plain || all_dim == 0) return plain;
  if (!model.rope.factor) read.refuse("mscale_all_dim of rope_scaling needs a factor next to it");
  const double scale = *model.rope.factor <= 1 ? 1 : 0.1 * all_dim * std::log(*model.rope.factor) + 1;
  return plain * scale * scale;
}

}  // namespace

void read_latent_attention(const ConfigReader& read, ModelConfig& model, const LatentConfig& defaults) {
  read_latents(read, model, defaults);
  model.interleaved_rope = read.flag("rope_interleave", true);
  model.attention_multiplier = scale_of_scores(read, model);
}

namespace {

void describe_deepseek_v3(const ConfigReader& read, ModelConfig& model) {
  read_latent_attention(
      read, model,
      {.q_lora_rank = 1536, .kv_lora_rank = 512, .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128});
  read_deepseek_experts(read, model,
                        {.counts = {.num_experts = 256, .num_experts_per_tok = 8, .moe_intermediate_size = 2048},
                         .n_group = 8,
                         .topk_group = 4,
                         .routed_scaling_factor = 2.5,
                         .first_k_dense_replace = 3});
}

}  // namespace

extern const Family kDeepseekV3;
const Family kDeepseekV3{"deepseek_v3", "DeepseekV3ForCausalLM", 0, 64, &describe_deepseek_v3};

// Kimi K2 is DeepSeek V3 with other sizes; transformers reads it as that once its model_type is changed.
extern const Family kKimiK2;
const Family kKimiK2{"kimi_k2", "DeepseekV3ForCausalLM", 0, 64, &describe_deepseek_v3};

}  // namespace concord
