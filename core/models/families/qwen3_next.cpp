// Qwen 3 Next, and the text models of Qwen 3.5 (also 3.6 and 3.8): three of four layers have a gated delta net, the
// others attention with a gate on its output and rope on a quarter of each head. Norms multiply by 1 + their weight;
// experts, and a shared expert with a gate, in all but the dense Qwen 3.5. As in transformers, the MTP layer in the
// files is not used by default.
#include <fmt/core.h>

#include "core/models/families/family.h"

namespace concord {
namespace {

constexpr IntegerRange kDeltaSizes{1, int64_t{1} << 16};

std::vector<bool> linear_layers(const ConfigReader& read, const ModelConfig& model) {
  const auto layers = static_cast<size_t>(model.num_hidden_layers);
  const auto interval = static_cast<size_t>(read.integer("full_attention_interval", kDeltaSizes, 4));
  const std::vector<std::string> types = read.texts("layer_types");
  if (read.has("layer_types") && types.size() != layers) {
    read.refuse("layer_types", fmt::format("has {} entries, but needs one for each of the {} of num_hidden_layers",
                                           types.size(), layers));
  }
  std::vector<bool> linear(layers);
  for (size_t i = 0; i < layers; ++i) {
    linear[i] = types.empty() ? (i + 1) % interval != 0 : types[i] == "linear_attention";
    if (types.empty() || linear[i] || types[i] == "full_attention") continue;
    read.refuse("layer_types",
                fmt::format("names '{}'; supported are full_attention and linear_attention", types[i].substr(0, 40)));
  }
  return linear;
}

void read_delta_net(const ConfigReader& read, ModelConfig& model) {
  DeltaConfig& delta = model.delta;
  delta = {.key_heads = read.integer("linear_num_key_heads", kDeltaSizes, 16),
           .value_heads = read.integer("linear_num_value_heads", kDeltaSizes, 32),
           .key_dim = read.integer("linear_key_head_dim", kDeltaSizes, 128),
           .value_dim = read.integer("linear_value_head_dim", kDeltaSizes, 128),
           .taps = read.integer("linear_conv_kernel_dim", {1, 64}, 4),
           .layers = linear_layers(read, model)};
  if (delta.value_heads % delta.key_heads != 0) {
    read.refuse(fmt::format("linear_num_value_heads {} must be a multiple of linear_num_key_heads {}",
                            delta.value_heads, delta.key_heads));
  }
}

void read_shared_expert(const ConfigReader& read, ModelConfig& model) {
  model.experts.shared_intermediate_size = read.integer("shared_expert_intermediate_size", {1, int64_t{1} << 24}, 512);
  model.experts.shared_gate = true;
}

void read_layers(const ConfigReader& read, ModelConfig& model) {
  model.qk_norm = true;
  model.norms_plus_one = true;
  model.attention_gate = true;
  model.unused_tensors = {"mtp."};
  model.num_nextn_predict_layers = read.integer("mtp_num_hidden_layers", {0, 1}, 0);
  read_attention_bias(read, model);
  read_delta_net(read, model);
}

void describe_qwen3_next(const ConfigReader& read, ModelConfig& model) {
  read_layers(read, model);
  read_qwen_experts(read, model, {.num_experts = 512, .num_experts_per_tok = 10, .moe_intermediate_size = 512});
  model.experts.norm_topk_prob = read.flag("norm_topk_prob", true);
  read_shared_expert(read, model);
}

void describe_qwen3_5(const ConfigReader& read, ModelConfig& model) {
  read_layers(read, model);
  model.delta.has_plain_projections = true;
}

void describe_qwen3_5_moe(const ConfigReader& read, ModelConfig& model) {
  describe_qwen3_5(read, model);
  read_expert_counts(read, model, {.num_experts = 256, .num_experts_per_tok = 8, .moe_intermediate_size = 512});
  model.experts.intermediate_size = model.intermediate_size;
  model.experts.norm_topk_prob = true;
  read_shared_expert(read, model);
}

const VisionDefaults kQwen35Vision{.kind = TowerKind::qwen3,
                                   .times = FrameTimes::separate,
                                   .image_token = 248056,
                                   .video_token = 248057,
                                   .mrope_section = {11, 11, 10},
                                   .mrope_interleaved = true};

}  // namespace

extern const Family kQwen3Next;
const Family kQwen3Next{"qwen3_next", "Qwen3NextForCausalLM", 2, 256, &describe_qwen3_next, 10000, 0.25};

extern const Family kQwen35;
const Family kQwen35{.model_type = "qwen3_5_text",
                     .architecture = "Qwen3_5ForCausalLM",
                     .default_key_value_heads = 4,
                     .default_head_dim = 256,
                     .describe = &describe_qwen3_5,
                     .default_partial_rotary_factor = 0.25,
                     .whole_model_type = "qwen3_5",
                     .whole_architecture = "Qwen3_5ForConditionalGeneration",
                     .text_defaults = R"({"vocab_size": 248320, "num_attention_heads": 16, "hidden_size": 4096,
                         "intermediate_size": 12288, "num_hidden_layers": 32, "max_position_embeddings": 32768})",
                     .scoring_architecture = "Qwen3_5TextForSequenceClassification",
                     .vision = &kQwen35Vision};

extern const Family kQwen35Moe;
const Family kQwen35Moe{.model_type = "qwen3_5_moe_text",
                        .architecture = "Qwen3_5MoeForCausalLM",
                        .default_key_value_heads = 2,
                        .default_head_dim = 256,
                        .describe = &describe_qwen3_5_moe,
                        .default_partial_rotary_factor = 0.25,
                        .intermediate_key = "moe_intermediate_size",
                        .whole_model_type = "qwen3_5_moe",
                        .whole_architecture = "Qwen3_5MoeForConditionalGeneration",
                        .text_defaults = R"({"vocab_size": 248320, "num_attention_heads": 16, "hidden_size": 2048,
                            "moe_intermediate_size": 512, "num_hidden_layers": 40, "max_position_embeddings": 32768})",
                        .scoring_architecture = "",
                        .vision = &kQwen35Vision};

}  // namespace concord
