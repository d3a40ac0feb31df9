// Qwen 3 VL: text models are Qwen 3, dense or with experts, with positions on three axes. Features of some blocks of
// the vision tower are added to the outputs of the first text layers.
#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_qwen3_vl(const ConfigReader& read, ModelConfig& model) {
  model.qk_norm = true;
  read_attention_bias(read, model);
}

// Weights of chosen experts are always normalized. Published files have all experts of a layer in two tensors, whose
// inputs come first.
void describe_qwen3_vl_moe(const ConfigReader& read, ModelConfig& model) {
  describe_qwen3_vl(read, model);
  read_qwen_experts(read, model, {.num_experts = 60, .num_experts_per_tok = 4, .moe_intermediate_size = 1408});
  model.experts.norm_topk_prob = true;
  model.experts.files = ExpertFiles::inputs_first;
}

const VisionDefaults kQwen3VlVision{.kind = TowerKind::qwen3,
                                    .times = FrameTimes::separate,
                                    .image_token = 151655,
                                    .video_token = 151656,
                                    .mrope_section = {24, 20, 20},
                                    .mrope_interleaved = true,
                                    .deepstack = {8, 16, 24}};

}  // namespace

extern const Family kQwen3Vl;
const Family kQwen3Vl{.model_type = "qwen3_vl_text",
                      .architecture = "Qwen3VLTextModel",
                      .default_key_value_heads = 32,
                      .default_head_dim = 128,
                      .describe = &describe_qwen3_vl,
                      .default_rope_theta = 500000,
                      .whole_model_type = "qwen3_vl",
                      .whole_architecture = "Qwen3VLForConditionalGeneration",
                      .text_defaults = R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
                          "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 128000})",
                      .scoring_architecture = "",
                      .vision = &kQwen3VlVision};

extern const Family kQwen3VlMoe;
const Family kQwen3VlMoe{.model_type = "qwen3_vl_moe_text",
                         .architecture = "Qwen3VLMoeTextModel",
                         .default_key_value_heads = 16,
                         .default_head_dim = 0,
                         .describe = &describe_qwen3_vl_moe,
                         .default_rope_theta = 500000,
                         .whole_model_type = "qwen3_vl_moe",
                         .whole_architecture = "Qwen3VLMoeForConditionalGeneration",
                         .text_defaults = R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
                             "num_hidden_layers": 24, "num_attention_heads": 16, "max_position_embeddings": 128000})",
                         .scoring_architecture = "",
                         .vision = &kQwen3VlVision};

}  // namespace concord
