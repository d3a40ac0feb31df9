#include "core/models/parameter_plan.h"

#include <fmt/core.h>

#include <utility>

#include "core/base/config_error.h"
#include "core/models/adapters/adapter_plan.h"
#include "core/models/families/module_config.h"
#include "core/models/plan_list.h"
#include "core/models/vision/tower_plan.h"
#include "core/parallel/padded_vocabulary.h"

namespace concord {
namespace {

using Dim = ShardSpec::Dim;
using Piece = ShardSpec::Piece;

constexpr auto kCut = ShardAxis::tp;

void check_divides(const char* what, int64_t size, int64_t parts, const char* by = "tensor_model_parallel_size") {
  if (size % parts == 0) return;
  throw ConfigError(
      fmt::format("{} {} is not divisible by {} {}; choose a {} that divides it", what, size, by, parts, by));
}

// Models with linear attention (Qwen 3.5) have one MTP layer, whose tensors have other names in files than those of
// |layer|.
std::string own_mtp_name(const std::string& name, const std::string& layer) {
  static constexpr std::pair<const char*, const char*> kNames[] = {{"enorm.weight", "pre_fc_norm_embedding.weight"},
                                                                   {"hnorm.weight", "pre_fc_norm_hidden.weight"},
                                                                   {"eh_proj.weight", "fc.weight"},
                                                                   {"shared_head.norm.weight", "norm.weight"}};
  if (!name.starts_with(layer)) return name;  // of an adapter
  const std::string rest = name.substr(layer.size());
  for (const auto& [ours, in_files] : kNames) {
    if (rest == ours) return fmt::format("mtp.{}", in_files);
  }
  return "mtp.layers.0." + rest;
}

class Planner {
 public:
  Planner(const ModelConfig& config, const ParameterPlanOptions& options)
      : config_(config), options_(options), list_(config, options), adapter_(list_) {
    check_divides("num_attention_heads", config.num_attention_heads, options.tp);
    check_key_heads();
    if (config.delta.count() > 0) check_divides("linear_num_key_heads", config.delta.key_heads, options.tp);
    const ExpertConfig& experts = config.experts;
    const bool all_sparse = experts.layers() == config.num_hidden_layers;
    if (!all_sparse) check_divides("intermediate_size", config.intermediate_size, options.tp);
    if (experts.layers() == 0) return;
    check_divides("num_experts", experts.num_experts, options.ep, "expert_model_parallel_size");
    check_divides("the intermediate size of an expert,", experts.intermediate_size, options.etp,
                  "expert_tensor_parallel_size");
    check_divides("the intermediate size of the shared expert,", experts.shared_intermediate_size, options.tp);
  }

  void embedding(const StageLayers& stage) {
    if (config_.vision.in_use) plan_tower(list_);
    ParameterPlan& plan = list_.add("model.embed_tokens.weight", {vocabulary(), {config_.hidden_size}}, normal());
    if (!config_.tie_word_embeddings && config_.mtp_layers == 0) return;
    plan.uses = stage.loss ? 1 + output_uses_of_embedding(config_) : 1;
    plan.shared_embedding = !stage.loss;
  }

  void layer(int64_t number) {
    const std::string layer = fmt::format("model.layers.{}.", number);
    const auto layer_norm = [&](const std::string& name) {
      if (!name.empty()) norm(layer + name + ".weight");
    };
    layer_norm(config_.norms.before_attention);
    if (config_.delta.has_layer(number)) {
      delta_net(layer + "linear_attn.");
    } else {
      attention(layer + "self_attn.");
    }
    layer_norm(config_.norms.after_attention);
    layer_norm(config_.norms.before_mlp);
    if (config_.experts.has_layer(number)) {
      experts(layer);
    } else {
      const int64_t first = list_.size();
      mlp(layer + "mlp.", config_.intermediate_size, config_.mlp_bias);
      list_.multiply_uses(first, options_.mlp_tiles);
    }
    layer_norm(config_.norms.after_mlp);
  }

  // Plans the MTP layer of depth |depth|: a layer like the others, with its projection and norms.
  void mtp_layer(int64_t depth) {
    const int64_t number = config_.num_hidden_layers + depth, hidden = config_.hidden_size, first = list_.size();
    const std::string layer = fmt::format("model.layers.{}.", number);
    norm(layer + "enorm.weight");
    norm(layer + "hnorm.weight");
    list_.add(layer + "eh_proj.weight", {{hidden}, {2 * hidden}}, normal()).partial_over_tp = list_.splits_tokens();
    this->layer(number);
    norm(layer + "shared_head.norm.weight");
    if (config_.delta.count() == 0) return;
    list_.rename_in_files(first, [&](const std::string& name) { return own_mtp_name(name, layer); });
  }

  void head(const StageLayers& stage) {
    norm("model.norm.weight");
    if (config_.is_reward_model) return whole("score.weight", 1, {});
    for (int64_t i = 0; i < config_.mtp_layers; ++i) mtp_layer(i);
    if (!config_.tie_word_embeddings) {
      const int64_t uses = 1 + config_.mtp_layers;
      list_.add("lm_head.weight", {vocabulary(), {config_.hidden_size}}, normal()).uses = uses;
      adapter_.add_column("lm_head", {{.name = "lm_head", .rows = vocabulary()}}, config_.hidden_size, uses);
    }
    if (output_uses_of_embedding(config_) > 0 && !stage.embedding && !options_.borrows_embedding) {
      ParameterPlan& plan = list_.add("model.embed_tokens.weight", {vocabulary(), {config_.hidden_size}}, normal());
      plan.shared_embedding = true;
      plan.uses = output_uses_of_embedding(config_);
    }
  }

  std::vector<ParameterPlan> take() { return list_.take(); }
  std::vector<std::string> take_modules() { return adapter_.take_modules(); }
  std::vector<std::string> take_parameters() { return adapter_.take_parameters(); }

 private:
  // A key head that several ranks use is split over them.
  void check_key_heads() const {
    const int64_t heads = config_.num_key_value_heads, columns = heads * config_.head_dim;
    if (heads % options_.tp == 0 || (options_.tp % heads == 0 && columns % options_.tp == 0)) return;
    throw ConfigError(
        fmt::format("num_key_value_heads {} of {} columns each cannot be split over tensor_model_parallel_size {}; "
                    "choose one that divides the heads, or a multiple of them that divides their {} columns",
                    heads, config_.head_dim, options_.tp, columns));
  }
  WeightInit normal() const { return normal_init(config_.initializer_range); }
  Dim vocabulary() const {
    return {config_.vocab_size, kCut,
            padded_vocabulary(config_.vocab_size, options_.tp, options_.make_vocab_size_divisible_by)};
  }

  // Plans a vector that sees only the rank's own tokens if tokens are split.
  ParameterPlan& of_own_tokens(const std::string& name, int64_t size, double value) {
    ParameterPlan& plan = list_.add(name, {{size}}, constant_init(value));
    plan.partial_over_tp = list_.splits_tokens();
    return plan;
  }
  // Plans a vector that all heads share; each rank has seen its own heads only.
  void of_own_heads(const std::string& name, int64_t size, double value) {
    list_.add(name, {{size}}, constant_init(value)).partial_over_tp = options_.tp > 1;
  }
  double norm_init() const { return config_.norms_plus_one ? 0 : 1; }
  void norm(const std::string& name) { of_own_tokens(name, config_.hidden_size, norm_init()); }

  // One weight for several layers with the same input, each split separately. Consecutive ones of the same name are
  // parts of one layer in files.
  void fused(const std::string& prefix, const std::string& name, const std::vector<Piece>& layers, bool bias,
             bool joined) {
    int64_t rows = 0;
    for (const Piece& layer : layers) rows += layer.size;
    const auto pieces = [&](const char* kind) {
      std::vector<Piece> named;
      for (const Piece& layer : layers) named.push_back({fmt::format("{}{}.{}", prefix, layer.name, kind), layer.size});
      return named;
    };
    ParameterPlan& weight = list_.add(fmt::format("{}{}.weight", prefix, name), {{rows, kCut}, {config_.hidden_size}},
                                      normal(), pieces("weight"));
    weight.spec.joined = joined;
    weight.linear = true;
    if (bias) {
      list_.add(fmt::format("{}{}.bias", prefix, name), {{rows, kCut}}, constant_init(0), pieces("bias")).spec.joined =
          joined;
    }
    std::vector<AdapterPlan::Module> modules;
    if (joined) modules.push_back({prefix + name, {rows, kCut}, layers});
    for (size_t i = 0; i < layers.size() && !joined; ++i) {
      const std::string module = prefix + layers[i].name;
      if (modules.empty() || modules.back().name != module) {
        modules.push_back({module, {layers[i].size, kCut}});
        continue;
      }
      if (modules.back().joined.empty()) modules.back().joined.push_back(layers[i - 1]);
      modules.back().joined.push_back(layers[i]);
      modules.back().rows.size += layers[i].size;
    }
    adapter_.add_column(prefix + name, modules, config_.hidden_size);
  }

  // Plans the projection back to the hidden size; its bias is added to the sum over ranks.
  void output(const std::string& name, int64_t inputs, bool bias) {
    list_.add(name + ".weight", {{config_.hidden_size}, {inputs, kCut}}, normal()).linear = true;
    if (bias) of_own_tokens(name + ".bias", config_.hidden_size, 0);
    adapter_.add_row(name, inputs);
  }

  void cut_by_outputs(const std::string& name, int64_t rows, int64_t inputs) {
    list_.add(name + ".weight", {{rows, kCut}, {inputs}}, normal()).linear = true;
    adapter_.add_column(name, {{.name = name, .rows = {rows, kCut}}}, inputs);
  }

  // Every rank holds the latents of its tokens and computes its own heads from them.
  void latent_attention(const std::string& prefix) {
    const LatentConfig& latent = config_.latent;
    const int64_t heads = config_.num_attention_heads, hidden = config_.hidden_size, query = latent.q_lora_rank;
    const auto pieces = [&](const char* kind) {
      std::vector<Piece> named;
      if (query > 0) named.push_back({fmt::format("{}q_a_proj.{}", prefix, kind), query});
      named.push_back({fmt::format("{}kv_a_proj_with_mqa.{}", prefix, kind), latent.compressed()});
      return named;
    };
    whole(prefix + "qkv_a_proj.weight", query + latent.compressed(), pieces("weight"));
    std::vector<AdapterPlan::Module> latents;
    if (query > 0) latents.push_back({prefix + "q_a_proj", {query}});
    latents.push_back({prefix + "kv_a_proj_with_mqa", {latent.compressed()}});
    adapter_.add_column(prefix + "qkv_a_proj", latents, hidden);
    if (latent.bias) {
      of_own_tokens(prefix + "qkv_a_proj.bias", query + latent.compressed(), 0).spec.pieces = pieces("bias");
    }
    if (query > 0) of_own_tokens(prefix + "q_a_layernorm.weight", query, 1);
    cut_by_outputs(prefix + (query > 0 ? "q_b_proj" : "q_proj"), heads * config_.head_dim, query > 0 ? query : hidden);
    of_own_tokens(prefix + "kv_a_layernorm.weight", latent.kv_lora_rank, 1);
    cut_by_outputs(prefix + "kv_b_proj", heads * (latent.qk_nope_head_dim + latent.v_head_dim), latent.kv_lora_rank);
    output(prefix + "o_proj", heads * latent.v_head_dim, config_.output_bias);
  }

  // Heads are cut as attention's are. Each key head has its part of both projections, with its value heads.
  void delta_net(const std::string& prefix) {
    const DeltaConfig& delta = config_.delta;
    const int64_t keys = delta.keys(), values = delta.values(), heads = delta.value_heads;
    if (delta.has_plain_projections) {
      const std::string qkv = "in_proj_qkv";
      fused(
          prefix, "in_proj",
          {{qkv, keys}, {qkv, keys}, {qkv, values}, {"in_proj_z", values}, {"in_proj_b", heads}, {"in_proj_a", heads}},
          false, false);
    } else {
      fused(prefix, "in_proj", {{"in_proj_qkvz", 2 * (keys + values)}, {"in_proj_ba", 2 * heads}}, false, false);
    }
    list_
        .add(prefix + "conv1d.weight", {{2 * keys + values, kCut}, {1}, {delta.taps}}, normal(),
             {{"queries", keys}, {"keys", keys}, {"values", values}})
        .spec.joined = true;
    list_.add(prefix + "dt_bias", {{heads, kCut}}, constant_init(1));
    list_.add(prefix + "A_log", {{heads, kCut}}, log_uniform_init(0.01, 16));  // initialisation of transformers
    of_own_heads(prefix + "norm.weight", delta.value_dim, 1);
    output(prefix + "out_proj", values, false);
  }

  void attention(const std::string& prefix) {
    if (config_.latent.used()) return latent_attention(prefix);
    const int64_t q = config_.num_attention_heads * config_.head_dim;
    const int64_t kv = config_.num_key_value_heads * config_.head_dim;
    const int64_t own_q = config_.attention_gate ? 2 * q : q;
    fused(prefix, "qkv_proj", {{"q_proj", own_q}, {"k_proj", kv}, {"v_proj", kv}}, config_.qkv_bias, config_.fused_qkv);
    const std::string q_norm = prefix + config_.q_norm + ".weight", k_norm = prefix + config_.k_norm + ".weight";
    if (config_.qk_norm_all_heads) {
      list_.add(q_norm, {{q, kCut}}, constant_init(1));
      list_.add(k_norm, {{kv, kCut}}, constant_init(1));
    } else if (config_.qk_norm) {
      of_own_heads(q_norm, config_.head_dim, norm_init());
      of_own_heads(k_norm, config_.head_dim, norm_init());
    }
    if (config_.sinks) list_.add(prefix + "sinks", {{config_.num_attention_heads, kCut}}, normal());
    output(prefix + "o_proj", q, config_.output_bias);
  }

  void mlp(const std::string& prefix, int64_t inner, bool bias) {
    fused(prefix, "gate_up_proj", {{"gate_proj", inner}, {"up_proj", inner}}, bias, config_.fused_gate_up);
    output(prefix + "down_proj", inner, bias);
  }

  // Plans a replicated weight that is multiplied with the rank's own tokens.
  void whole(const std::string& name, int64_t rows, std::vector<Piece> pieces) {
    list_.add(name, {{rows}, {config_.hidden_size}}, normal(), std::move(pieces)).partial_over_tp =
        list_.splits_tokens();
  }

  // Plans a stack of one tensor per expert, in which |pieces| are concatenated along dimension 1; or the tensor |whole|
  // of all experts, with the same pieces.
  void stack(const std::string& name, Dim rows, Dim columns, std::vector<Piece> pieces, const std::string& whole) {
    const bool is_whole = config_.experts.files != ExpertFiles::per_expert;
    for (Piece& piece : pieces) piece.name = is_whole ? whole : piece.name;
    const bool turned = config_.experts.are_inputs_first();
    const std::vector<Dim> dims = turned ? std::vector{columns, rows} : std::vector{rows, columns};
    ParameterPlan& plan = list_.add_experts(name, dims, normal(), std::move(pieces));
    plan.spec.stacked = !is_whole;
    plan.spec.fused_dim = turned ? 2 : 1;
  }

  // Plans all experts of a layer in one tensor, as in the files. Ranks that share an expert add up parts of its
  // results, so each adds a fraction of the last bias.
  void experts_with_biases(const std::string& layer) {
    const ExpertConfig& all = config_.experts;
    const int64_t inner = all.intermediate_size, hidden = config_.hidden_size;
    list_.add_experts(layer + all.gate_up, {{hidden}, {2 * inner, ShardAxis::etp}}, normal());
    list_.add_experts(layer + all.gate_up + "_bias", {{2 * inner, ShardAxis::etp}}, constant_init(0));
    list_.add_experts(layer + all.down, {{inner, ShardAxis::etp}, {hidden}}, normal());
    ParameterPlan& bias = list_.add_experts(layer + all.down + "_bias", {{hidden}}, constant_init(0));
    bias.spec.replicated_over = {GroupKind::etp, GroupKind::edp};
    bias.partial_over_tp = options_.etp > 1;
    adapter_.add_expert_tensors({{layer + all.gate_up, {2 * inner, ShardAxis::etp}, {hidden}},
                                 {layer + all.down, {hidden}, {inner, ShardAxis::etp}}});
  }

  void experts(const std::string& layer) {
    const ExpertConfig& all = config_.experts;
    const int64_t inner = all.intermediate_size, hidden = config_.hidden_size;
    const std::string mlp_name = layer + "mlp.";
    whole(mlp_name + "router.weight", all.num_experts, {{layer + all.router, all.num_experts}});
    if (!all.has_biases()) {
      adapter_.add_column(mlp_name + "router", {{module_of(layer + all.router), {all.num_experts}}}, hidden);
    }
    if (!all.router_bias.empty()) {
      list_
          .add(mlp_name + "router.logit_bias", {{all.num_experts}}, normal(),
               {{layer + all.router_bias, all.num_experts}})
          .partial_over_tp = list_.splits_tokens();
    }
    if (!all.bias.empty()) {
      std::vector<Dim> dims{{all.num_experts}};
      if (all.bias_is_row) dims.insert(dims.begin(), {1});
      const int64_t rows = dims.front().size;
      list_.add(mlp_name + "router.bias", dims, constant_init(0), {{layer + all.bias, rows}}).buffer = true;
    }
    if (all.has_biases()) return experts_with_biases(layer);
    stack(mlp_name + "experts.gate_up_proj.weight", {2 * inner, ShardAxis::etp}, {hidden},
          {{layer + all.gate, inner}, {layer + all.up, inner}}, layer + all.gate_up);
    adapter_.add_experts(
        mlp_name + "experts.gate_up_proj",
        {{module_of(layer + all.gate), {inner, ShardAxis::etp}}, {module_of(layer + all.up), {inner, ShardAxis::etp}}},
        {hidden});
    stack(mlp_name + "experts.down_proj.weight", {hidden}, {inner, ShardAxis::etp}, {{layer + all.down, hidden}},
          mlp_name + "experts.down_proj");
    adapter_.add_experts(mlp_name + "experts.down_proj", {{module_of(layer + all.down), {hidden}}},
                         {inner, ShardAxis::etp});
    if (all.shared_intermediate_size == 0) return;
    mlp(layer + all.shared, all.shared_intermediate_size, false);
    if (!all.shared_gate) return;
    whole(mlp_name + "shared_expert_gate.weight", 1, {});
    adapter_.add_column(mlp_name + "shared_expert_gate", {{mlp_name + "shared_expert_gate", {1}}}, hidden);
  }

  const ModelConfig& config_;
  const ParameterPlanOptions& options_;
  PlanList list_;
  AdapterPlan adapter_;
};

}  // namespace

int64_t output_uses_of_embedding(const ModelConfig& config) {
  return config.mtp_layers + (config.tie_word_embeddings ? 1 + config.mtp_layers : 0);
}

std::vector<ParameterPlan> plan_parameters(const ModelConfig& config, const StageLayers& stage,
                                           const ParameterPlanOptions& options) {
  if (stage.mtp_layers > 0 && (stage.mtp_layers != config.mtp_layers || !stage.loss)) {
    throw ConfigError(fmt::format(
        "the layout has {} multi-token prediction layers (m) on a stage {} the loss, but mtp_num_layers is {}; "
        "these numbers must be equal, next to the L",
        stage.mtp_layers, stage.loss ? "with" : "without", config.mtp_layers));
  }
  if (stage.first_layer < 0 || stage.layers < 0 || stage.first_layer + stage.layers > config.num_hidden_layers) {
    throw ConfigError(fmt::format("a stage has layers {} to {} (exclusive), but the model's num_hidden_layers is {}",
                                  stage.first_layer, stage.first_layer + stage.layers, config.num_hidden_layers));
  }
  if (!config.module.empty()) return plan_module(config, stage);
  Planner planner(config, options);
  if (stage.embedding) planner.embedding(stage);
  for (int64_t i = 0; i < stage.layers; ++i) planner.layer(stage.first_layer + i);
  if (stage.loss) planner.head(stage);
  return planner.take();
}

int64_t adapter_parameters(const ModelConfig& config, const AdapterConfig& adapter) {
  const AdapterModules modules(adapter);
  const StageLayers whole{.embedding = true, .layers = config.num_hidden_layers, .loss = true};
  int64_t elements = 0;
  for (const ParameterPlan& plan : plan_parameters(config, whole, {.adapter = &modules})) {
    int64_t size = plan.frozen ? 0 : 1;
    for (const ShardSpec::Dim& dim : plan.spec.dims) size *= dim.size;
    elements += size;
  }
  return elements;
}

AdapterConfig adapter_for(const ModelConfig& config, AdapterConfig adapter) {
  const ParameterPlanOptions one_rank;
  Planner planner(config, one_rank);
  const StageLayers all{.embedding = true, .layers = config.num_hidden_layers, .loss = true};
  planner.embedding(all);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) planner.layer(i);
  planner.head(all);
  std::vector<std::string> whole;
  for (const ParameterPlan& plan : planner.take()) {
    const bool is_tied = config.tie_word_embeddings && plan.spec.name == "model.embed_tokens.weight";
    const bool is_module = plan.spec.name.ends_with(".weight") || plan.spec.name.ends_with(".bias");
    if (plan.spec.pieces.empty() && !plan.spec.stacked && !is_tied && is_module) {
      whole.push_back(module_of(plan.spec.name));
    }
  }
  return with_targets(std::move(adapter), planner.take_modules(), whole, planner.take_parameters());
}

}  // namespace concord
