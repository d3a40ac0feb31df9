#include "trainer/arguments/foreign/model_description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "trainer/arguments/values.h"

namespace concord {
namespace {

using Texts = std::vector<std::string>;

// What a model has under a name of Megatron's: the values that agree with it. None: the name says nothing of it.
struct Fact {
  std::string_view name;
  Texts (*of)(const ModelConfig& model);
  std::string_view standard = "";  // Megatron's default for a new model; empty: it follows from others
};

Texts number(double value) { return {fmt::format("{:.12g}", value)}; }
Texts flag(bool value) { return {value ? "true" : "false"}; }
Texts anything(const ModelConfig&) { return {}; }

bool is_clamped(const ModelConfig& model) { return model.activation.kind == GatedActivation::Kind::clamped; }
bool has_all_biases(const ModelConfig& model) { return model.qkv_bias && model.output_bias; }

Texts normalised_scores(const ModelConfig& model) {
  const ExpertConfig& experts = model.experts;
  if (experts.sigmoid_scores || experts.num_experts == 0) return {};  // it does not matter
  return flag(!experts.norm_topk_prob && !experts.softmax_after_topk);
}

// 1 if all layers have experts; else a list, in the forms that Megatron evaluates.
Texts layers_with_experts(const ModelConfig& model) {
  const std::vector<bool>& sparse = model.experts.sparse;
  const auto dense = std::ranges::count(sparse, false);
  const auto with = std::ssize(sparse) - dense;
  const bool dense_first = std::is_sorted(sparse.begin(), sparse.end());
  if (dense == 0) return {"1", fmt::format("[1]*{}", with)};
  std::string all;
  for (const bool each : sparse) all += fmt::format("{}{}", all.empty() ? "" : ",", each ? 1 : 0);
  Texts texts = {"[" + all + "]"};
  if (dense_first) texts.insert(texts.begin(), fmt::format("[0]*{}+[1]*{}", dense, with));
  if (dense_first && dense == 1) texts.push_back(fmt::format("[0]+[1]*{}", with));
  return texts;
}

Texts windows(const ModelConfig& model) {
  const int64_t window = model.windows.empty() ? 0 : std::ranges::max(model.windows);
  return window == 0 ? Texts{"-1,-1", "-1,0"} : Texts{fmt::format("{},0", window - 1)};
}

Texts positions(const ModelConfig& model) {
  return model.rope.rope_type == RopeType::yarn ? Texts{"rope", "yarn"} : Texts{"rope"};
}

Texts latent_rope(const ModelConfig& model) {
  if (!model.latent.used()) return {};
  return {model.rope.rope_type == RopeType::yarn ? "yarn" : "rope"};
}

Texts torchtitan_name(const ModelConfig& model) {
  if (model.model_type == "llama") return {"llama3", "llama"};
  return model.model_type == "qwen3_moe" ? Texts{"qwen3", "qwen3_moe"} : Texts{model.model_type};
}

// Megatron's vocabulary without padding may be smaller than the embedding.
constexpr double kMostPadding = 1024;

constexpr Fact kFacts[] = {
    {"num_layers", [](const ModelConfig& m) { return number(static_cast<double>(m.num_hidden_layers)); }},
    {"hidden_size", [](const ModelConfig& m) { return number(static_cast<double>(m.hidden_size)); }},
    {"ffn_hidden_size", [](const ModelConfig& m) { return number(static_cast<double>(m.intermediate_size)); }},
    {"num_attention_heads", [](const ModelConfig& m) { return number(static_cast<double>(m.num_attention_heads)); }},
    {"num_query_groups", [](const ModelConfig& m) { return number(static_cast<double>(m.num_key_value_heads)); }},
    {"group_query_attention", anything},
    {"kv_channels",
     [](const ModelConfig& m) { return m.latent.used() ? Texts{} : number(static_cast<double>(m.head_dim)); }},
    {"max_position_embeddings", anything},
    {"position_embedding_type", positions, "learned_absolute"},
    {"rope_type", latent_rope},
    {"use_rotary_position_embeddings", [](const ModelConfig&) { return flag(true); }},
    {"no_position_embedding", anything},
    {"rotary_base", [](const ModelConfig& m) { return number(m.rope.rope_theta); }, "10000"},
    {"rotary_percent", [](const ModelConfig& m) { return number(m.rope.partial_rotary_factor); }, "1"},
    {"rotary_interleaved", [](const ModelConfig& m) { return m.latent.used() ? Texts{} : flag(m.interleaved_rope); },
     "false"},
    {"use_rope_scaling", [](const ModelConfig& m) { return flag(m.rope.rope_type == RopeType::llama3); }, "false"},
    {"rope_scaling_factor", [](const ModelConfig& m) { return number(m.rope.factor.value_or(1)); }},
    {"rotary_seq_len_interpolation_factor",
     [](const ModelConfig& m) { return number(m.rope.rope_type == RopeType::linear ? m.rope.factor.value_or(1) : 1); },
     "1"},
    {"yarn_original_max_position_embeddings",
     [](const ModelConfig& m) { return number(static_cast<double>(m.rope.original_max_position_embeddings)); }},
    {"rotary_scaling_factor", [](const ModelConfig& m) { return number(m.rope.factor.value_or(1)); }},
    {"mscale", [](const ModelConfig& m) { return number(m.rope.mscale.value_or(1)); }},
    {"mscale_all_dim", [](const ModelConfig& m) { return number(m.rope.mscale_all_dim.value_or(0)); }},
    {"original_max_position_embeddings",
     [](const ModelConfig& m) { return number(static_cast<double>(m.rope.original_max_position_embeddings)); }},
    {"beta_fast", [](const ModelConfig& m) { return number(m.rope.beta_fast); }},
    {"beta_slow", [](const ModelConfig& m) { return number(m.rope.beta_slow); }},
    {"yarn_beta_fast", [](const ModelConfig& m) { return number(m.rope.beta_fast); }},
    {"yarn_beta_slow", [](const ModelConfig& m) { return number(m.rope.beta_slow); }},
    {"normalization", [](const ModelConfig&) { return Texts{"RMSNorm"}; }, "LayerNorm"},
    {"norm_epsilon", [](const ModelConfig& m) { return number(m.rms_norm_eps); }, "1e-5"},
    {"layernorm_epsilon", [](const ModelConfig& m) { return number(m.rms_norm_eps); }},
    {"apply_layernorm_1p", anything},  // the same function, with the weight stored less one
    {"qk_layernorm", [](const ModelConfig& m) { return m.latent.used() ? Texts{} : flag(m.qk_norm); }, "false"},
    {"swiglu", [](const ModelConfig& m) { return flag(m.activation.kind == GatedActivation::Kind::silu); }, "false"},
    {"gated_linear_unit", [](const ModelConfig&) { return flag(true); }},
    {"activation_func", anything},
    {"quick_geglu", [](const ModelConfig& m) { return flag(is_clamped(m)); }, "false"},
    {"glu_linear_offset", [](const ModelConfig& m) { return number(is_clamped(m) ? 1 : 0); }, "0"},
    {"activation_func_clamp_value",
     [](const ModelConfig& m) { return is_clamped(m) ? number(m.activation.limit) : Texts{"none"}; }},
    {"add_bias_linear", [](const ModelConfig& m) { return flag(has_all_biases(m)); }},
    {"disable_bias_linear", [](const ModelConfig& m) { return flag(!has_all_biases(m)); }, "false"},
    {"add_qkv_bias", [](const ModelConfig& m) { return has_all_biases(m) ? Texts{} : flag(m.qkv_bias); }, "false"},
    {"untie_embeddings_and_output_weights", [](const ModelConfig& m) { return flag(!m.tie_word_embeddings); }, "false"},
    {"init_method_std", anything},
    {"vocab_size", [](const ModelConfig& m) { return number(static_cast<double>(m.vocab_size)); }},
    {"padded_vocab_size", [](const ModelConfig& m) { return number(static_cast<double>(m.vocab_size)); }},
    {"multi_latent_attention", [](const ModelConfig& m) { return flag(m.latent.used()); }, "false"},
    {"q_lora_rank", [](const ModelConfig& m) { return number(static_cast<double>(m.latent.q_lora_rank)); }},
    {"kv_lora_rank", [](const ModelConfig& m) { return number(static_cast<double>(m.latent.kv_lora_rank)); }},
    {"qk_head_dim", [](const ModelConfig& m) { return number(static_cast<double>(m.latent.qk_nope_head_dim)); }},
    {"qk_pos_emb_head_dim",
     [](const ModelConfig& m) { return number(static_cast<double>(m.latent.qk_rope_head_dim)); }},
    {"v_head_dim", [](const ModelConfig& m) { return number(static_cast<double>(m.value_dim())); }},
    {"softmax_type", [](const ModelConfig& m) { return Texts{m.sinks ? "learnable" : "vanilla"}; }, "vanilla"},
    {"enable_gpt_oss", [](const ModelConfig& m) { return flag(m.model_type == "gpt_oss"); }},
    {"window_size", windows},
    {"window_attn_skip_freq", anything},
    {"num_experts", [](const ModelConfig& m) { return number(static_cast<double>(m.experts.num_experts)); }},
    {"moe_ffn_hidden_size",
     [](const ModelConfig& m) { return number(static_cast<double>(m.experts.intermediate_size)); }},
    {"moe_router_topk",
     [](const ModelConfig& m) { return number(static_cast<double>(m.experts.num_experts_per_tok)); }},
    {"moe_router_score_function",
     [](const ModelConfig& m) { return Texts{m.experts.sigmoid_scores ? "sigmoid" : "softmax"}; }},
    {"moe_router_pre_softmax", normalised_scores},
    {"moe_router_num_groups", [](const ModelConfig& m) { return number(static_cast<double>(m.experts.n_group)); }},
    {"moe_router_group_topk", [](const ModelConfig& m) { return number(static_cast<double>(m.experts.topk_group)); }},
    {"moe_router_topk_scaling_factor", [](const ModelConfig& m) { return number(m.experts.routed_scaling_factor); }},
    {"moe_router_enable_expert_bias", [](const ModelConfig& m) { return flag(!m.experts.bias.empty()); }},
    {"moe_shared_expert_intermediate_size",
     [](const ModelConfig& m) { return number(static_cast<double>(m.experts.shared_intermediate_size)); }},
    {"moe_shared_expert_gate", [](const ModelConfig& m) { return flag(m.experts.shared_gate); }},
    {"moe_layer_freq", layers_with_experts},
    {"model.name", torchtitan_name},
};

const Fact* find_fact(std::string_view name) {
  const auto found = std::ranges::find(kFacts, name, &Fact::name);
  return found == std::ranges::end(kFacts) ? nullptr : &*found;
}

// (127, 0) is 127,0, and ([0]+[1]*26) is 0+1*26.
std::string plain(const std::string& text) {
  std::string kept;
  for (const char each : text) {
    if (std::string_view(" ()[]").find(each) == std::string_view::npos) kept += each;
  }
  return kept;
}

bool agrees(const std::string& name, const std::string& given, const Texts& allowed) {
  if (allowed.empty()) return true;
  const std::optional<double> as_given = as_number(given);
  return std::ranges::any_of(allowed, [&](const std::string& each) {
    const std::optional<double> other = as_number(each);
    if (!as_given || !other) return plain(given) == plain(each);
    if (name == "vocab_size") return *as_given <= *other && *other - *as_given < kMostPadding;
    return std::abs(*as_given - *other) <= 1e-9 * std::abs(*other);
  });
}

std::string text_of(const ArgumentValue& value) {
  if (value.form == ArgumentValue::Form::list) return fmt::format("{}", fmt::join(value.items, ","));
  if (value.form == ArgumentValue::Form::mapping) return "a mapping";
  if (value.text == "True" || value.text == "False") return value.text == "True" ? "true" : "false";
  return value.text;
}

}  // namespace

void ModelDescription::add(const std::string& name, const ArgumentValue& value, const std::string& where) {
  given_[name] = {text_of(value), where};
}

void ModelDescription::compare(const ModelConfig& config, const std::string& source, Problems* problems) const {
  for (const auto& [name, given] : given_) {
    const Fact* fact = find_fact(name);
    const Texts allowed = fact->of(config);
    if (agrees(name, given.text, allowed)) continue;
    problems->add(fmt::format("{}: {} is {}, but the model has {} ({})", given.where, name, quoted(given.text),
                              quoted(allowed.front()), source));
  }
}

void ModelDescription::apply(TrainingArguments* arguments, Problems* problems) const {
  if (given_.empty()) return;
  const std::string& path = arguments->model.path.empty() ? arguments->model.config : arguments->model.path;
  if (!path.empty()) {
    try {
      compare(read_model_config(path), path, problems);
    } catch (const ConfigError&) {
      // the check of the model reports it
    }
    return;
  }
  if (!given_.contains("num_layers") && !given_.contains("hidden_size")) return;  // "no model" is reported
  std::map<std::string, std::string> description;
  for (const Fact& fact : kFacts) {
    if (!fact.standard.empty()) description[std::string(fact.name)] = fact.standard;
  }
  for (const auto& [name, given] : given_) description[name] = given.text;
  // As Megatron does:
  if (given_.contains("use_rotary_position_embeddings")) description["position_embedding_type"] = "rope";
  if (given_.contains("enable_gpt_oss")) description["position_embedding_type"] = "yarn";
  problems->collect([&] {
    const std::string text = config_of_description(description, arguments->data.tokenizer);
    const ModelConfig config = parse_model_config(text, "the described model");
    for (const auto& [name, value] : description) {
      const Texts allowed = find_fact(name)->of(config);
      if (agrees(name, value, allowed)) continue;
      problems->add(fmt::format("{}{} is {}, which no model family here has: a {} model has {}; give model_config",
                                given_.contains(name) ? given_.at(name).where + ": " : "Megatron's default of ", name,
                                quoted(value), config.model_type, quoted(allowed.front())));
    }
    arguments->model.config = text;
  });
}

}  // namespace concord
