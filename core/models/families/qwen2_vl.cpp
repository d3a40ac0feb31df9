// Qwen 2 VL and 2.5 VL: text models are Qwen 2 with positions on three axes. Files may have the keys of the text model
// at their root.
#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_qwen2_vl(const ConfigReader& read, ModelConfig& model) {
  model.qkv_bias = true;
  read_qwen_windows(read, model);
}

VisionDefaults qwen2_vision(TowerKind kind, FrameTimes times) {
  return {.kind = kind,
          .times = times,
          .image_token = 151655,
          .video_token = 151656,
          .mrope_section = {16, 24, 24},
          .mrope_interleaved = false};
}

const VisionDefaults kQwen2VlVision = qwen2_vision(TowerKind::qwen2, FrameTimes::counted);
const VisionDefaults kQwen25VlVision = qwen2_vision(TowerKind::qwen2_5, FrameTimes::seconds);
const char* const kQwen2VlDefaults = R"({"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568,
    "num_hidden_layers": 80, "num_attention_heads": 64, "max_position_embeddings": 32768, "rms_norm_eps": 1e-05,
    "max_window_layers": 80})";

}  // namespace

extern const Family kQwen2Vl;
const Family kQwen2Vl{.model_type = "qwen2_vl_text",
                      .architecture = "Qwen2VLTextModel",
                      .default_key_value_heads = 8,
                      .default_head_dim = 0,
                      .describe = &describe_qwen2_vl,
                      .default_rope_theta = 1e6,
                      .whole_model_type = "qwen2_vl",
                      .whole_architecture = "Qwen2VLForConditionalGeneration",
                      .text_defaults = kQwen2VlDefaults,
                      .scoring_architecture = "",
                      .vision = &kQwen2VlVision};

extern const Family kQwen25Vl;
const Family kQwen25Vl{.model_type = "qwen2_5_vl_text",
                       .architecture = "Qwen2_5_VLTextModel",
                       .default_key_value_heads = 8,
                       .default_head_dim = 0,
                       .describe = &describe_qwen2_vl,
                       .default_rope_theta = 1e6,
                       .whole_model_type = "qwen2_5_vl",
                       .whole_architecture = "Qwen2_5_VLForConditionalGeneration",
                       .text_defaults = kQwen2VlDefaults,
                       .scoring_architecture = "",
                       .vision = &kQwen25VlVision};

}  // namespace concord
