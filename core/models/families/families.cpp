#include <fmt/core.h>

#include <array>

#include "core/models/families/family.h"

namespace concord {

extern const Family kDeepseekV3;
extern const Family kErnie45;
extern const Family kErnie45Moe;
extern const Family kGemma2;
extern const Family kGemma3Text;
extern const Family kGlm4;
extern const Family kGlm4Moe;
extern const Family kGlm4MoeLite;
extern const Family kGptOss;
extern const Family kGranite;
extern const Family kHunyuanV1Dense;
extern const Family kKimiK2;
extern const Family kLlama;
extern const Family kMiniMaxM2;
extern const Family kMinistral3;
extern const Family kMistral;
extern const Family kMixtral;
extern const Family kOlmo2;
extern const Family kOlmo3;
extern const Family kPhi3;
extern const Family kQwen2;
extern const Family kQwen2Moe;
extern const Family kQwen2Vl;
extern const Family kQwen25Vl;
extern const Family kQwen3;
extern const Family kQwen35Moe;
extern const Family kQwen35;
extern const Family kQwen3Moe;
extern const Family kQwen3Next;
extern const Family kQwen3Vl;
extern const Family kQwen3VlMoe;
extern const Family kSeedOss;
extern const Family kSmolLm3;

std::span<const Family* const> all_families() {
  static const std::array families{
      &kDeepseekV3,  &kErnie45,    &kErnie45Moe, &kGemma2,         &kGemma3Text, &kGlm4,   &kGlm4Moe,
      &kGlm4MoeLite, &kGptOss,     &kGranite,    &kHunyuanV1Dense, &kKimiK2,     &kLlama,  &kMiniMaxM2,
      &kMinistral3,  &kMistral,    &kMixtral,    &kOlmo2,          &kOlmo3,      &kPhi3,   &kQwen2,
      &kQwen25Vl,    &kQwen2Moe,   &kQwen2Vl,    &kQwen3,          &kQwen35Moe,  &kQwen35, &kQwen3Moe,
      &kQwen3Next,   &kQwen3VlMoe, &kQwen3Vl,    &kSeedOss,        &kSmolLm3};
  return families;
}

void read_attention_bias(const ConfigReader& read, ModelConfig& model) {
  model.qkv_bias = read.flag("attention_bias", false);
  model.output_bias = model.qkv_bias;
}

namespace {

// Whether each layer has a sliding window.
std::vector<bool> windowed_layers(const ConfigReader& read, const ModelConfig& model, bool used,
                                  const WindowRule& rule) {
  const auto layers = static_cast<size_t>(model.num_hidden_layers);
  std::vector<bool> windowed(layers, false);
  const std::vector<std::string> types = read.texts("layer_types");
  if (read.has("layer_types") && types.size() != layers) {
    read.refuse("layer_types", fmt::format("has {} entries, but needs one for each of the {} of num_hidden_layers",
                                           types.size(), layers));
  }
  const int64_t first = read.integer("max_window_layers", {0, int64_t{1} << 40}, 28);
  for (size_t i = 0; i < layers; ++i) {
    if (types.empty()) {
      windowed[i] = used && rule(static_cast<int64_t>(i), first);
    } else if (types[i] == "sliding_attention") {
      if (!used) read.refuse("layer_types", "names sliding_attention, which needs use_sliding_window true");
      windowed[i] = true;
    } else if (types[i] != "full_attention") {
      read.refuse("layer_types", fmt::format("names '{}'; supported are full_attention and sliding_attention",
                                             types[i].substr(0, 40)));
    }
  }
  return windowed;
}

}  // namespace

bool from_max_window_layers(int64_t layer, int64_t max_window_layers) { return layer >= max_window_layers; }

void read_qwen_windows(const ConfigReader& read, ModelConfig& model, const WindowRule& rule) {
  const bool none = read.names("sliding_window") && !read.has("sliding_window");  // null
  const bool used = read.flag("use_sliding_window", false) && !none;
  const std::vector<bool> windowed = windowed_layers(read, model, used, rule);
  for (size_t i = 0; i < windowed.size(); ++i) {
    if (windowed[i]) model.windows[i] = read.integer("sliding_window", kWindowRange, 4096);
  }
}

void read_alternating_windows(const ConfigReader& read, ModelConfig& model, int64_t window, int64_t pattern) {
  const auto rule = [pattern](int64_t layer, int64_t) { return (layer + 1) % pattern != 0; };
  const std::vector<bool> windowed = windowed_layers(read, model, /*used=*/true, rule);
  for (size_t i = 0; i < windowed.size(); ++i) {
    if (!windowed[i]) continue;
    if (read.names("sliding_window") && !read.has("sliding_window")) {
      read.refuse("sliding_window", fmt::format("must be a number, since layer {} has sliding_attention", i));
    }
    model.windows[i] = read.integer("sliding_window", kWindowRange, window);
  }
}

void read_expert_counts(const ConfigReader& read, ModelConfig& model, const ExpertDefaults& defaults) {
  constexpr IntegerRange kExperts{1, int64_t{1} << 16};
  ExpertConfig& experts = model.experts;
  // transformers 5 has one name for all; in older files it depends on the family.
  const char* key = "num_local_experts";
  for (const char* name : {"num_experts", "n_routed_experts", "moe_num_experts"}) {
    if (read.has(name)) key = name;
  }
  const char* const choices = read.has("moe_k") ? "moe_k" : "num_experts_per_tok";
  experts.num_experts = read.integer(key, kExperts, defaults.num_experts);
  experts.num_experts_per_tok = read.integer(choices, kExperts, defaults.num_experts_per_tok);
  if (experts.num_experts_per_tok > experts.num_experts) {
    read.refuse(
        fmt::format("{} {} must be at most {} {}", choices, experts.num_experts_per_tok, key, experts.num_experts));
  }
  experts.sparse.assign(static_cast<size_t>(model.num_hidden_layers), true);
  experts.output_router_logits = read.flag("output_router_logits", false);
  experts.router_aux_loss_coef = read.not_negative("router_aux_loss_coef", 0.001);
}

void read_qwen_experts(const ConfigReader& read, ModelConfig& model, const ExpertDefaults& defaults) {
  read_expert_counts(read, model, defaults);
  ExpertConfig& experts = model.experts;
  experts.intermediate_size =
      read.integer("moe_intermediate_size", {1, int64_t{1} << 24}, defaults.moe_intermediate_size);
  experts.norm_topk_prob = read.flag("norm_topk_prob", false);
  const int64_t layers = model.num_hidden_layers;
  const int64_t step = read.integer("decoder_sparse_step", {1, int64_t{1} << 16}, 1);
  for (int64_t i = 0; i < layers; ++i) experts.sparse[static_cast<size_t>(i)] = (i + 1) % step == 0;
  for (const int64_t dense : read.integers("mlp_only_layers", {0, int64_t{1} << 16})) {
    if (dense < layers) experts.sparse[static_cast<size_t>(dense)] = false;
  }
}

namespace {

// Experts are in |n_group| groups, of which a token chooses |topk_group| by the sum of their two best scores.
void read_groups(const ConfigReader& read, const DeepseekDefaults& defaults, ExpertConfig& experts) {
  constexpr IntegerRange kGroups{1, int64_t{1} << 16};
  experts.n_group = read.integer("n_group", kGroups, defaults.n_group);
  experts.topk_group = read.integer("topk_group", kGroups, defaults.topk_group);
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

}  // namespace

void read_deepseek_experts(const ConfigReader& read, ModelConfig& model, const DeepseekDefaults& defaults) {
  constexpr IntegerRange kSizes{1, int64_t{1} << 24};
  read_expert_counts(read, model, defaults.counts);
  ExpertConfig& experts = model.experts;
  experts.output_router_logits = false;  // transformers has no loss for them here
  experts.intermediate_size = read.integer("moe_intermediate_size", kSizes, defaults.counts.moe_intermediate_size);
  experts.shared_intermediate_size = experts.intermediate_size * read.integer("n_shared_experts", {1, 1 << 10}, 1);
  experts.shared = "mlp.shared_experts.";
  experts.sigmoid_scores = experts.fp32_router = experts.wide_weights = true;
  experts.bias = "mlp.gate.e_score_correction_bias";
  experts.norm_topk_prob = read.flag("norm_topk_prob", true);
  experts.routed_scaling_factor = read.positive("routed_scaling_factor", defaults.routed_scaling_factor);
  read_groups(read, defaults, experts);
  const char* further = read.has("num_mtp_layers") ? "num_mtp_layers" : "num_nextn_predict_layers";
  model.num_nextn_predict_layers = read.integer(further, {0, 64}, 1);
  const int64_t dense = read.integer("first_k_dense_replace", {0, int64_t{1} << 16}, defaults.first_k_dense_replace);
  for (int64_t i = 0; i < model.num_hidden_layers; ++i) experts.sparse[static_cast<size_t>(i)] = i >= dense;
}

}  // namespace concord
