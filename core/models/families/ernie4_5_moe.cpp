// ERNIE 4.5 with experts: softmax scores and a bias for the choice only, and shared experts, which are one MLP. As in
// transformers, MTP layers in the files are not used.
#include "core/models/families/family.h"

namespace concord {
namespace {

constexpr IntegerRange kLayerIndices{-1, int64_t{1} << 16};

void describe_ernie4_5_moe(const ConfigReader& read, ModelConfig& model) {
  read_ernie(read, model);
  if (model.qkv_bias) read.refuse("use_bias", "must be false: the output layer would have a bias");
  model.unused_tensors = {"model.mtp_"};
  read_expert_counts(read, model, {.num_experts = 64, .num_experts_per_tok = 6, .moe_intermediate_size = 1536});
  ExpertConfig& experts = model.experts;
  experts.intermediate_size = read.integer("moe_intermediate_size", {1, int64_t{1} << 24}, 1536);
  experts.shared_intermediate_size =
      experts.intermediate_size * read.integer("moe_num_shared_experts", {0, 1 << 10}, 2);
  experts.shared = "mlp.shared_experts.";
  experts.bias = "mlp.moe_statics.e_score_correction_bias";
  experts.bias_is_row = true;
  experts.fp32_router = true;
  experts.norm_topk_prob = true;
  const int64_t first = read.integer("moe_layer_start_index", kLayerIndices, 1);
  const int64_t last = read.integer("moe_layer_end_index", kLayerIndices, -1);
  const int64_t interval = read.integer("moe_layer_interval", {1, int64_t{1} << 16}, 1);
  for (int64_t i = 0; i < model.num_hidden_layers; ++i) {
    experts.sparse[static_cast<size_t>(i)] = (i + 1) % interval == 0 && i >= first && (last == -1 || i <= last);
  }
}

}  // namespace

extern const Family kErnie45Moe;
const Family kErnie45Moe{.model_type = "ernie4_5_moe",
                         .architecture = "Ernie4_5_MoeForCausalLM",
                         .default_key_value_heads = 4,
                         .default_head_dim = 0,
                         .describe = &describe_ernie4_5_moe,
                         .default_rope_theta = 5e5,
                         .scoring_architecture = ""};

}  // namespace concord
