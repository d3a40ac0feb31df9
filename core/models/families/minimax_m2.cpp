// MiniMax M2: norms over all heads of q and of k together, rope on a part of each head, and experts in all layers, with
// Mixtral's names: sigmoid scores and a bias for the choice only, without groups.
#include "core/models/families/family.h"

namespace concord {
namespace {

// Published files have rotary_dim, the rotated elements of a head, for partial_rotary_factor.
void read_rotary_dim(const ConfigReader& read, ModelConfig& model) {
  const bool has_rope = read.has("rope_parameters") && read.object("rope_parameters").has("partial_rotary_factor");
  if (has_rope || read.has("partial_rotary_factor") || !read.has("rotary_dim")) return;
  const int64_t rotated = read.integer("rotary_dim", {2, model.head_dim});
  if (rotated % 2 != 0) read.refuse("rotary_dim", "must be even: rope rotates pairs");
  model.rope.partial_rotary_factor = static_cast<double>(rotated) / static_cast<double>(model.head_dim);
}

void describe_minimax_m2(const ConfigReader& read, ModelConfig& model) {
  if (read.not_negative("router_jitter_noise", 0) != 0) read.refuse("router_jitter_noise", "must be 0");
  read_rotary_dim(read, model);
  model.qk_norm_all_heads = true;
  read_expert_counts(read, model, {.num_experts = 256, .num_experts_per_tok = 8, .moe_intermediate_size = 0});
  read_mixtral_names(model);
  ExpertConfig& experts = model.experts;
  experts.bias = "block_sparse_moe.e_score_correction_bias";
  experts.sigmoid_scores = true;
}

}  // namespace

extern const Family kMiniMaxM2;
const Family kMiniMaxM2{.model_type = "minimax_m2",
                        .architecture = "MiniMaxM2ForCausalLM",
                        .default_key_value_heads = 8,
                        .default_head_dim = 128,
                        .describe = &describe_minimax_m2,
                        .default_rope_theta = 5e6,
                        .default_partial_rotary_factor = 1,
                        .scoring_architecture = ""};

}  // namespace concord
