// GLM 4.5 and 4.6: rope on the first half of each head, optional norms of q and k, experts behind sigmoid scores and a
// bias that only chooses, a shared expert without a gate, and a few dense layers before the first with experts. What
// their files have for predicting further tokens is not used, as in transformers.
#include <fmt/core.h>

#include "core/models/families/family.h"

namespace concord {
namespace {

// Experts are in |n_group| groups, of which a token chooses |topk_group| by the sum of their two best scores.
void read_groups(const ConfigReader& read, ExpertConfig& experts) {
  constexpr IntegerRange kGroups{1, int64_t{1} << 16};
  experts.n_group = read.integer("n_group", kGroups, 1);
  experts.topk_group = read.integer("topk_group", kGroups, 1);
  const int64_t size = experts.num_experts / experts.n_group;
  if (experts.num_experts % experts.n_group == 0 && size >= 2 && experts.topk_group <= experts.n_group &&
      experts.topk_group * size >= experts.num_experts_per_tok) {
    return;
  }
  read.refuse(
      fmt::format("n_group {} and topk_group {} do not fit {} experts with {} per token; n_group must divide them into "
                  "groups of at least 2, of which topk_group have enough",
                  experts.n_group, experts.topk_group, experts.num_experts, experts.num_experts_per_tok));
}

void describe_glm4_moe(const ConfigReader& read, ModelConfig& model) {
  constexpr IntegerRange kSizes{1, int64_t{1} << 24};
  model.qkv_bias = read.flag("attention_bias", false);
  model.rms_norm_eps = read.positive("rms_norm_eps", 1e-5);
  model.qk_norm = read.flag("use_qk_norm", false);
  read_expert_counts(read, model, {.num_experts = 128, .num_experts_per_tok = 8, .moe_intermediate_size = 1408});
  ExpertConfig& experts = model.experts;
  experts.output_router_logits = false;  // transformers has no loss for them here
  experts.intermediate_size = read.integer("moe_intermediate_size", kSizes, 1408);
  experts.shared_intermediate_size = experts.intermediate_size * read.integer("n_shared_experts", {1, 1 << 10}, 1);
  experts.shared = "mlp.shared_experts.";
  experts.sigmoid_scores = experts.wide_router = experts.wide_weights = true;
  experts.bias = "mlp.gate.e_score_correction_bias";
  experts.norm_topk_prob = read.flag("norm_topk_prob", true);
  experts.routed_scaling_factor = read.positive("routed_scaling_factor", 1);
  read_groups(read, experts);
  const char* further = read.has("num_mtp_layers") ? "num_mtp_layers" : "num_nextn_predict_layers";
  model.unused_layers = read.integer(further, {0, 64}, 1);
  const int64_t dense = read.integer("first_k_dense_replace", {0, int64_t{1} << 16}, 1);
  for (int64_t i = 0; i < model.num_hidden_layers; ++i) experts.sparse[static_cast<size_t>(i)] = i >= dense;
}

}  // namespace

extern const Family kGlm4Moe;
const Family kGlm4Moe{"glm4_moe", "Glm4MoeForCausalLM", 8, 0, &describe_glm4_moe, 10000, 0.5};

}  // namespace concord
