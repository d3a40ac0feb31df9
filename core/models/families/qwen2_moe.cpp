// Qwen 1.5 and 2 with experts: besides those that tokens choose there is one for all of them, behind a gate.
#include "core/models/families/family.h"

namespace concord {
namespace {

bool every_other_layer(int64_t layer, int64_t max_window_layers) { return layer % 2 == 0 && layer < max_window_layers; }

void describe_qwen2_moe(const ConfigReader& read, ModelConfig& model) {
  model.qkv_bias = read.flag("qkv_bias", true);
  read_qwen_windows(read, model, every_other_layer);
  read_qwen_experts(read, model, {.num_experts = 60, .num_experts_per_tok = 4, .moe_intermediate_size = 1408});
  model.experts.shared_intermediate_size = read.integer("shared_expert_intermediate_size", {1, int64_t{1} << 24}, 5632);
  model.experts.shared_gate = true;
}

}  // namespace

extern const Family kQwen2Moe;
const Family kQwen2Moe{"qwen2_moe", "Qwen2MoeForCausalLM", 16, 0, &describe_qwen2_moe};

}  // namespace concord
