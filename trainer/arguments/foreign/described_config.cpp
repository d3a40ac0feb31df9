// A config.json from names of Megatron's.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "trainer/arguments/foreign/model_description.h"
#include "trainer/arguments/values.h"

namespace concord {
namespace {

using nlohmann::ordered_json;

class Description {
 public:
  explicit Description(const std::map<std::string, std::string>& texts) : texts_(texts) {}

  bool has(const std::string& name) const { return texts_.contains(name); }
  bool is_on(const std::string& name) const { return has(name) && texts_.at(name) == "true"; }
  std::string text(const std::string& name) const { return has(name) ? texts_.at(name) : ""; }
  double number(const std::string& name, std::optional<double> fallback = {}) const {
    if (!has(name) && fallback) return *fallback;
    if (!has(name)) {
      throw ConfigError(
          fmt::format("the model is described by Megatron's arguments, but {} is missing; give it, or "
                      "model_config",
                      name));
    }
    const std::optional<double> value = as_number(texts_.at(name));
    if (value && std::isfinite(*value)) return *value;
    throw ConfigError(fmt::format("{} is {}, but must be a number", name, quoted(texts_.at(name))));
  }
  int64_t integer(const std::string& name, std::optional<int64_t> fallback = {}) const {
    const double value = number(name, fallback ? std::optional(static_cast<double>(*fallback)) : std::nullopt);
    if (std::trunc(value) == value && std::abs(value) < 9e15) return static_cast<int64_t>(value);
    throw ConfigError(fmt::format("{} is {}, but must be an integer", name, quoted(text(name))));
  }

 private:
  const std::map<std::string, std::string>& texts_;
};

std::string family_of(const Description& given) {
  if (given.is_on("multi_latent_attention")) return "deepseek_v3";
  if (given.text("softmax_type") == "learnable" || given.is_on("enable_gpt_oss")) return "gpt_oss";
  if (given.has("num_experts")) {
    if (given.has("moe_shared_expert_intermediate_size")) return "qwen2_moe";
    return given.is_on("qk_layernorm") || given.is_on("moe_router_pre_softmax") ? "qwen3_moe" : "mixtral";
  }
  if (given.is_on("qk_layernorm")) return "qwen3";
  return given.is_on("add_qkv_bias") ? "qwen2" : "llama";
}

std::string architecture_of(const std::string& family) {
  constexpr std::pair<std::string_view, const char*> kNames[] = {{"deepseek_v3", "DeepseekV3ForCausalLM"},
                                                                 {"gpt_oss", "GptOssForCausalLM"},
                                                                 {"qwen2_moe", "Qwen2MoeForCausalLM"},
                                                                 {"qwen3_moe", "Qwen3MoeForCausalLM"},
                                                                 {"mixtral", "MixtralForCausalLM"},
                                                                 {"qwen3", "Qwen3ForCausalLM"},
                                                                 {"qwen2", "Qwen2ForCausalLM"},
                                                                 {"llama", "LlamaForCausalLM"}};
  for (const auto& [name, architecture] : kNames) {
    if (name == family) return architecture;
  }
  return "";
}

// Megatron's: 4 h, or with a gate two thirds of that, rounded down to a multiple of 64.
int64_t default_ffn_size(const Description& given, int64_t hidden) {
  return given.is_on("swiglu") ? 4 * hidden * 2 / 3 / 64 * 64 : 4 * hidden;
}

// The tokens of a tokenizer.json, or of the one in a folder.
int64_t tokens_of(const std::string& path) {
  constexpr uint64_t kMost = uint64_t{1} << 28;
  const std::string file = path.ends_with(".json") ? path : path + "/tokenizer.json";
  const nlohmann::json tokenizer = parse_json(InputFile(file).read(kMost, "a tokenizer"), file);
  int64_t largest = -1;
  try {
    const nlohmann::json& tokens = tokenizer.at("model").at("vocab");
    if (tokens.is_array()) largest = static_cast<int64_t>(tokens.size()) - 1;
    if (tokens.is_object()) {
      for (const auto& [text, id] : tokens.items()) largest = std::max(largest, id.get<int64_t>());
    }
    for (const auto& token : tokenizer.value("added_tokens", nlohmann::json::array())) {
      largest = std::max(largest, token.at("id").get<int64_t>());
    }
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("{} is not a tokenizer.json: {}", quoted(file), json_reason(error)));
  }
  return largest + 1;
}

int64_t vocabulary(const Description& given, const std::string& tokenizer) {
  if (given.has("padded_vocab_size")) return given.integer("padded_vocab_size");
  if (given.has("vocab_size") || tokenizer.empty() || tokenizer == "byte") return given.integer("vocab_size");
  return tokens_of(tokenizer);
}

void add_attention(const Description& given, ordered_json* config) {
  const int64_t heads = given.integer("num_attention_heads"), hidden = given.integer("hidden_size");
  const bool is_latent = given.is_on("multi_latent_attention");
  const bool is_grouped = !is_latent && given.is_on("group_query_attention");
  (*config)["num_attention_heads"] = heads;
  (*config)["num_key_value_heads"] = is_grouped ? given.integer("num_query_groups", 1) : heads;
  if (!is_latent) {
    (*config)["head_dim"] = given.integer("kv_channels", heads > 0 ? hidden / heads : 0);
    return;
  }
  (*config)["q_lora_rank"] = given.has("q_lora_rank") ? ordered_json(given.integer("q_lora_rank")) : ordered_json();
  (*config)["kv_lora_rank"] = given.integer("kv_lora_rank", 32);  // these are Megatron's defaults
  (*config)["qk_nope_head_dim"] = given.integer("qk_head_dim", 128);
  (*config)["qk_rope_head_dim"] = given.integer("qk_pos_emb_head_dim", 64);
  (*config)["v_head_dim"] = given.integer("v_head_dim", 128);
}

void add_rope(const Description& given, ordered_json* config) {
  (*config)["rope_theta"] = given.number("rotary_base");
  if (given.number("rotary_percent") != 1) (*config)["partial_rotary_factor"] = given.number("rotary_percent");
  const bool is_latent = given.is_on("multi_latent_attention");
  const bool is_yarn =
      given.text("position_embedding_type") == "yarn" || (is_latent && given.text("rope_type") != "rope");
  if (given.is_on("enable_gpt_oss")) {  // which sets these in Megatron
    (*config)["rope_scaling"] = {
        {"rope_type", "yarn"},   {"factor", 32.0},   {"original_max_position_embeddings", 131072},
        {"beta_fast", 32.0},     {"beta_slow", 1.0}, {"mscale", 1.0},
        {"mscale_all_dim", 0.0}, {"truncate", false}};
  } else if (is_yarn) {
    const std::string prefix = is_latent ? "" : "yarn_";  // of Megatron's names
    (*config)["rope_scaling"] = {
        {"rope_type", "yarn"},
        {"factor", given.number("rotary_scaling_factor", 40)},
        {"original_max_position_embeddings", given.integer(prefix + "original_max_position_embeddings", 4096)},
        {"beta_fast", given.number(prefix + "beta_fast", 32)},
        {"beta_slow", given.number(prefix + "beta_slow", 1)},
        {"mscale", given.number("mscale", 1)},
        {"mscale_all_dim", given.number("mscale_all_dim", 0)}};
  } else if (given.number("rotary_seq_len_interpolation_factor", 1) != 1) {
    (*config)["rope_scaling"] = {{"rope_type", "linear"},
                                 {"factor", given.number("rotary_seq_len_interpolation_factor")}};
  } else if (given.is_on("use_rope_scaling")) {
    (*config)["rope_scaling"] = {{"rope_type", "llama3"},
                                 {"factor", given.number("rope_scaling_factor", 8)},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 8192}};
  } else {
    (*config)["rope_scaling"] = ordered_json();  // null, which gpt_oss does not take for a missing one
  }
}

// Layers without experts at the start, which deepseek_v3 has: [0]*3+[1]*58. Others are compared afterwards.
int64_t dense_layers(const Description& given) {
  const std::string text = given.text("moe_layer_freq");
  const size_t times = text.find("[0]*");
  if (times != std::string::npos) return std::atoll(text.c_str() + times + 4);
  return text.find("[0]+") != std::string::npos ? 1 : 0;
}

void add_experts(const Description& given, const std::string& family, ordered_json* config) {
  const int64_t size = given.integer("moe_ffn_hidden_size", (*config)["intermediate_size"].get<int64_t>());
  const int64_t experts = given.integer("num_experts");
  const bool is_deepseek = family == "deepseek_v3";
  (*config)[is_deepseek                                  ? "n_routed_experts"
            : family == "mixtral" || family == "gpt_oss" ? "num_local_experts"
                                                         : "num_experts"] = experts;
  (*config)["num_experts_per_tok"] = given.integer("moe_router_topk", 2);
  if (family == "mixtral" || family == "gpt_oss") {
    (*config)["intermediate_size"] = size;
    return;
  }
  (*config)["moe_intermediate_size"] = size;
  (*config)["norm_topk_prob"] = is_deepseek || !given.is_on("moe_router_pre_softmax");
  if (!is_deepseek) {
    if (family == "qwen2_moe") {
      (*config)["shared_expert_intermediate_size"] = given.integer("moe_shared_expert_intermediate_size");
    }
    return;
  }
  (*config)["n_group"] = given.integer("moe_router_num_groups", 1);
  (*config)["topk_group"] = given.integer("moe_router_group_topk", 1);
  (*config)["routed_scaling_factor"] = given.number("moe_router_topk_scaling_factor", 1);
  (*config)["first_k_dense_replace"] = dense_layers(given);
  const int64_t shared = given.integer("moe_shared_expert_intermediate_size", size);
  (*config)["n_shared_experts"] = size > 0 ? shared / size : 0;
}

// The first number of (127,0): the keys before its own that a query sees.
std::optional<int64_t> keys_before(const std::string& window) {
  const size_t digit = window.find_first_of("0123456789");
  if (digit == std::string::npos) return std::nullopt;
  return std::atoll(window.c_str() + digit);
}

}  // namespace

std::string config_of_description(const std::map<std::string, std::string>& description, const std::string& tokenizer) {
  const Description given(description);
  const std::string family = family_of(given);
  const int64_t hidden = given.integer("hidden_size");
  ordered_json config = {{"architectures", {architecture_of(family)}}, {"model_type", family}};
  config["vocab_size"] = vocabulary(given, tokenizer);
  config["hidden_size"] = hidden;
  config["num_hidden_layers"] = given.integer("num_layers");
  config["intermediate_size"] = given.integer("ffn_hidden_size", default_ffn_size(given, hidden));
  add_attention(given, &config);
  add_rope(given, &config);
  if (given.has("num_experts")) add_experts(given, family, &config);
  if (family == "gpt_oss") {
    config["attention_bias"] = !given.is_on("disable_bias_linear");
    config["swiglu_limit"] = given.number("activation_func_clamp_value", 7);
    const std::optional<int64_t> before = keys_before(given.text("window_size"));
    config["sliding_window"] = before ? *before + 1 : 128;
  }
  config["hidden_act"] = "silu";
  config["max_position_embeddings"] = given.integer("max_position_embeddings");
  config["rms_norm_eps"] = given.number(given.has("layernorm_epsilon") ? "layernorm_epsilon" : "norm_epsilon");
  config["initializer_range"] = given.number("init_method_std", 0.02);
  config["tie_word_embeddings"] = !given.is_on("untie_embeddings_and_output_weights");
  config["torch_dtype"] = "float32";
  return config.dump();
}

}  // namespace concord
