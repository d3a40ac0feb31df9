#include "core/models/config_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace concord {
namespace {

std::string field_text(const std::string& text) { return text; }
std::string field_text(bool value) { return value ? "true" : "false"; }
std::string field_text(int64_t value) { return std::to_string(value); }
std::string field_text(double value) { return fmt::format("{}", value); }  // the shortest that reads back the same
std::string field_text(const std::optional<double>& value) { return value ? field_text(*value) : ""; }
std::string field_text(const std::vector<int64_t>& values) { return fmt::format("{}", fmt::join(values, " ")); }
std::string field_text(const std::vector<std::string>& values) { return fmt::format("{}", fmt::join(values, ",")); }
std::string field_text(const std::vector<bool>& values) {
  std::string text;
  for (const bool each : values) text += each ? '1' : '0';
  return text;
}
template <class Number>
std::string field_text(const std::vector<std::pair<std::string, Number>>& pairs) {
  std::string text;
  for (const auto& [key, value] : pairs) text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", key, value);
  return text;
}
std::string field_text(const GatedActivation& activation) {
  using Kind = GatedActivation::Kind;
  if (activation.kind != Kind::clamped) return activation.kind == Kind::silu ? "silu" : "gelu_pytorch_tanh";
  return fmt::format("clamped to {}, alpha {}", activation.limit, activation.alpha);
}
std::string field_text(const LayerNorms& norms) {
  return fmt::format("{} {} {} {}", norms.before_attention, norms.after_attention, norms.before_mlp, norms.after_mlp);
}

template <class Value>
ConfigField same(std::string name, const Value& value) {
  return {std::move(name), field_text(value)};
}
template <class Value>
ConfigField may_differ(std::string name, const Value& value) {
  return {std::move(name), field_text(value), true};
}

void append(ConfigFields* fields, ConfigFields more, std::string_view suffix = "") {
  for (ConfigField& field : more) {
    field.name += suffix;
    fields->push_back(std::move(field));
  }
}

}  // namespace

ConfigFields config_fields(const RopeSettings& rope) {
  return {same("rope_type", std::string(name_of(rope.rope_type))), same("rope_theta", rope.rope_theta),
          same("partial_rotary_factor", rope.partial_rotary_factor),
          same("original_max_position_embeddings", rope.original_max_position_embeddings),
          same("rope factor", rope.factor), same("low_freq_factor", rope.low_freq_factor),
          same("high_freq_factor", rope.high_freq_factor), same("attention_factor", rope.attention_factor),
          same("mscale", rope.mscale), same("mscale_all_dim", rope.mscale_all_dim), same("beta_fast", rope.beta_fast),
          same("beta_slow", rope.beta_slow), same("rope truncate", rope.truncate),
          same("mrope_section", rope.mrope_section), same("mrope_interleaved", rope.mrope_interleaved),
          // Both are compared as fields of the model.
          may_differ("rope head_dim", rope.head_dim),
          may_differ("rope max_position_embeddings", rope.max_position_embeddings)};
}

ConfigFields config_fields(const ExpertConfig& experts) {
  return {
      same("num_experts", experts.num_experts), same("num_experts_per_tok", experts.num_experts_per_tok),
      same("the experts' intermediate size", experts.intermediate_size),
      same("the shared expert's intermediate size", experts.shared_intermediate_size),
      same("norm_topk_prob", experts.norm_topk_prob), same("sigmoid scores", experts.sigmoid_scores),
      same("expert bias", !experts.bias.empty()), same("softmax over the chosen experts", experts.softmax_after_topk),
      same("biases of router and experts", experts.has_biases()),
      same("routed_scaling_factor", experts.routed_scaling_factor), same("n_group", experts.n_group),
      same("topk_group", experts.topk_group), same("layers with experts", experts.sparse),
      // The loss that balances experts is a setting of the run.
      may_differ("output_router_logits", experts.output_router_logits),
      may_differ("router_aux_loss_coef", experts.router_aux_loss_coef),
      // The architecture, which is compared, determines the others.
      may_differ("gate of the shared expert", experts.shared_gate), may_differ("router in fp32", experts.fp32_router),
      may_differ("router weights in fp32", experts.wide_weights), may_differ("name of the router", experts.router),
      may_differ("name of the router's bias", experts.router_bias),
      may_differ("expert bias of two dimensions", experts.bias_is_row),
      may_differ("name of the shared expert", experts.shared), may_differ("name of the gates", experts.gate),
      may_differ("name of the ups", experts.up), may_differ("name of the downs", experts.down),
      may_differ("name of the stacked gates and ups", experts.gate_up)};
}

ConfigFields config_fields(const LatentConfig& latent) {
  return {
      same("q_lora_rank", latent.q_lora_rank),
      same("kv_lora_rank", latent.kv_lora_rank),
      same("qk_rope_head_dim", latent.qk_rope_head_dim),
      same("v_head_dim", latent.v_head_dim),
      same("biases of latents", latent.bias),
      may_differ("qk_nope_head_dim", latent.qk_nope_head_dim)};  // head_dim, which is compared, less qk_rope_head_dim
}

ConfigFields config_fields(const VisionConfig& vision) {
  const MediaTokens& tokens = vision.tokens;
  return {
      may_differ("vision tower", vision.in_use),
      same("kind of the vision tower", static_cast<int64_t>(vision.kind)),
      same("vision depth", vision.depth),
      same("vision hidden_size", vision.hidden_size),
      same("vision intermediate_size", vision.intermediate_size),
      same("vision num_heads", vision.num_heads),
      same("in_channels", vision.in_channels),
      same("patch_size", vision.patch_size),
      same("temporal_patch_size", vision.temporal_patch_size),
      same("num_position_embeddings", vision.num_position_embeddings),
      same("window_size", vision.window_size),
      same("fullatt_block_indexes", vision.full_blocks),
      same("deepstack_visual_indexes", vision.deepstack),
      same("tokens of images and videos", std::vector{tokens.image_token, tokens.video_token, tokens.merge,
                                                      static_cast<int64_t>(tokens.times), tokens.tokens_per_second})};
}

ConfigFields config_fields(const DeltaConfig& delta) {
  return {same("linear_num_key_heads", delta.key_heads),
          same("linear_num_value_heads", delta.value_heads),
          same("linear_key_head_dim", delta.key_dim),
          same("linear_value_head_dim", delta.value_dim),
          same("linear_conv_kernel_dim", delta.taps),
          same("layers with linear attention", delta.layers),
          may_differ("plain projections", delta.has_plain_projections)};
}

ConfigFields config_fields(const ModelConfig& config) {
  ConfigFields fields = {
      same("architecture", config.architecture), same("vocab_size", config.vocab_size),
      same("hidden_size", config.hidden_size), same("intermediate_size", config.intermediate_size),
      same("num_hidden_layers", config.num_hidden_layers), same("num_attention_heads", config.num_attention_heads),
      same("num_key_value_heads", config.num_key_value_heads), same("head_dim", config.head_dim),
      same("max_position_embeddings", config.max_position_embeddings), same("rms_norm_eps", config.rms_norm_eps),
      same("tie_word_embeddings", config.tie_word_embeddings),
      same("biases of queries, keys and values", config.qkv_bias),
      same("bias of the attention's output", config.output_bias), same("mlp_bias", config.mlp_bias),
      same("qk_norm", config.qk_norm), same("qk_norm of all heads together", config.qk_norm_all_heads),
      same("qk_norm after rope", config.qk_norm_after_rope), may_differ("name of q_norm", config.q_norm),
      may_differ("name of k_norm", config.k_norm), same("llama_4_scaling_beta", config.query_scaling_beta),
      same("gate of the attention's output", config.attention_gate),
      same("norms times 1 + weight", config.norms_plus_one), same("attention sinks", config.sinks),
      same("activation", config.activation),
      same("layers with rope", config.rotated.empty() ? "all" : field_text(config.rotated)),
      same("rope of neighbouring pairs", config.interleaved_rope),
      same("embedding_multiplier", config.embedding_multiplier),
      same("residual_multiplier", config.residual_multiplier),
      same("attention_multiplier", config.attention_multiplier),
      same("attn_logit_softcapping", config.attn_logit_softcapping),
      same("final_logit_softcapping", config.final_logit_softcapping),
      same("attention_dropout", config.attention_dropout), same("logits_scaling", config.logits_scaling),
      same("sliding windows", config.windows),
      // The architecture determines these.
      may_differ("model_type", config.model_type), may_differ("norms of a layer", config.norms),
      may_differ("rounded embedding_multiplier", config.rounds_embedding_multiplier),
      may_differ("reward model", config.is_reward_model),
      // Files, and layers in them that are not part of the model.
      may_differ("fused qkv_proj", config.fused_qkv), may_differ("fused gate_up_proj", config.fused_gate_up),
      may_differ("num_nextn_predict_layers", config.num_nextn_predict_layers),
      may_differ("mtp_num_layers", config.mtp_layers), may_differ("unused tensors", config.unused_tensors),
      may_differ("weight_block_size", config.weight_block_size), may_differ("dtype", config.dtype),
      may_differ("config.json", config.text), may_differ("config.json of the whole", config.whole_text),
      // Weights exist already.
      may_differ("initializer_range", config.initializer_range)};
  append(&fields, config_fields(config.latent));
  append(&fields, config_fields(config.rope));
  if (config.window_rope) append(&fields, config_fields(*config.window_rope), " of layers with a window");
  append(&fields, config_fields(config.experts));
  append(&fields, config_fields(config.delta));
  append(&fields, config_fields(config.vision));
  for (const ModuleParameter& each : config.module) fields.push_back(same("parameter " + each.name, each.shape));
  return fields;
}

ConfigFields config_fields(const AdapterConfig& adapter) {
  return {same("lora_rank", adapter.r),
          same("lora_alpha", adapter.lora_alpha),
          same("lora_dropout", adapter.lora_dropout),
          same("use_rslora", adapter.use_rslora),
          same("use_dora", adapter.use_dora),
          same("lora_target", adapter.target_modules),
          same("pattern of lora_target", adapter.target_pattern),
          same("excluded modules", adapter.exclude_modules),
          same("lora_target_parameters", adapter.target_parameters),
          same("modules_to_save", adapter.modules_to_save),
          same("rank_pattern", adapter.rank_pattern),
          same("alpha_pattern", adapter.alpha_pattern),
          may_differ("init_lora_weights", adapter.init_lora_weights),  // a setting of the run, not in files
          may_differ("base_model_name_or_path", adapter.base_model),
          may_differ("merged_adapters", adapter.merged_adapters)};
}

}  // namespace concord
