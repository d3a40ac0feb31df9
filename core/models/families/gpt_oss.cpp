// GPT-OSS: experts in all layers, with biases and a custom activation, softmax over the chosen logits only, sinks in
// attention, windows on every other layer, biases everywhere, YaRN.
#include "core/models/families/family.h"

namespace concord {
namespace {

void read_gpt_oss_experts(const ConfigReader& read, ModelConfig& model) {
  read_expert_counts(read, model, {.num_experts = 128, .num_experts_per_tok = 4, .moe_intermediate_size = 0});
  ExpertConfig& experts = model.experts;
  experts.intermediate_size = model.intermediate_size;
  experts.softmax_after_topk = true;
  experts.files = ExpertFiles::with_biases;
  experts.router = "mlp.router.weight";
  experts.router_bias = "mlp.router.bias";
  experts.down = "mlp.experts.down_proj";
  model.activation = {.kind = GatedActivation::Kind::clamped,
                      .alpha = read.positive("swiglu_alpha", 1.702),
                      .limit = read.positive("swiglu_limit", 7)};
}

void describe_gpt_oss(const ConfigReader& read, ModelConfig& model) {
  model.qkv_bias = model.output_bias = read.flag("attention_bias", true);
  model.rms_norm_eps = read.positive("rms_norm_eps", 1e-5);
  model.sinks = true;
  read_alternating_windows(read, model, 128, 2);
  read_gpt_oss_experts(read, model);
  if (read.has("rope_scaling") || read.has("rope_parameters")) return;
  model.rope.rope_type = RopeType::yarn;
  model.rope.factor = 32;
  model.rope.truncate = false;
  model.rope.original_max_position_embeddings = 4096;
}

}  // namespace

extern const Family kGptOss;
const Family kGptOss{"gpt_oss", "GptOssForCausalLM", 8, 64, &describe_gpt_oss, 150000};

}  // namespace concord
