// Qwen 3 with experts: as Qwen 3, but a window, where it is used, is that of all layers.
#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_qwen3_moe(const ConfigReader& read, ModelConfig& model) {
  model.qk_norm = true;
  read_attention_bias(read, model);
  read_qwen_windows(read, model, [](int64_t, int64_t) { return true; });
  read_qwen_experts(read, model, {.num_experts = 128, .num_experts_per_tok = 8, .moe_intermediate_size = 768});
}

}  // namespace

extern const Family kQwen3Moe;
const Family kQwen3Moe{"qwen3_moe", "Qwen3MoeForCausalLM", 4, 0, &describe_qwen3_moe};

}  // namespace concord
