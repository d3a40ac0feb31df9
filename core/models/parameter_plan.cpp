#include "core/models/parameter_plan.h"

#include <fmt/core.h>

#include <utility>

#include "core/config_error.h"
#include "core/parallel/padded_vocabulary.h"

namespace concord {
namespace {

using Dim = ShardSpec::Dim;
using Piece = ShardSpec::Piece;

constexpr auto kCut = ShardAxis::tp;

void check_divides(const char* what, int64_t size, int64_t tp) {
  if (size % tp == 0) return;
  throw ConfigError(fmt::format(
      "{} {} is not divisible by tensor_model_parallel_size {}; choose a tensor_model_parallel_size that divides it",
      what, size, tp));
}

class Planner {
 public:
  Planner(const ModelConfig& config, const ParameterPlanOptions& options) : config_(config), options_(options) {
    check_divides("num_attention_heads", config.num_attention_heads, options.tp);
    check_divides("num_key_value_heads", config.num_key_value_heads, options.tp);
    const ExpertConfig& experts = config.experts;
    const bool all_sparse = experts.layers() == config.num_hidden_layers;
    if (!all_sparse) check_divides("intermediate_size", config.intermediate_size, options.tp);
    if (experts.layers() == 0) return;
    check_divides("the intermediate size of an expert,", experts.intermediate_size, options.tp);
    check_divides("the intermediate size of the shared expert,", experts.shared_intermediate_size, options.tp);
  }

  void embedding(const StageLayers& stage) {
    add("model.embed_tokens.weight", {vocabulary(), {config_.hidden_size}}, normal());
    if (!config_.tie_word_embeddings) return;
    plans_.back().uses = stage.loss ? 2 : 1;
    plans_.back().shared_embedding = !stage.loss;
  }

  void layer(int64_t number) {
    const std::string layer = fmt::format("model.layers.{}.", number);
    const auto layer_norm = [&](const std::string& name) {
      if (!name.empty()) norm(layer + name + ".weight");
    };
    layer_norm(config_.norms.before_attention);
    attention(layer + "self_attn.");
    layer_norm(config_.norms.after_attention);
    layer_norm(config_.norms.before_mlp);
    if (config_.experts.has_layer(number)) {
      experts(layer);
    } else {
      mlp(layer + "mlp.", config_.intermediate_size, config_.mlp_bias);
    }
    layer_norm(config_.norms.after_mlp);
  }

  void head(const StageLayers& stage) {
    norm("model.norm.weight");
    if (!config_.tie_word_embeddings) {
      add("lm_head.weight", {vocabulary(), {config_.hidden_size}}, normal());
    } else if (!stage.embedding && !options_.borrows_output) {
      add("model.embed_tokens.weight", {vocabulary(), {config_.hidden_size}}, normal());
      plans_.back().shared_embedding = true;
    }
  }

  std::vector<ParameterPlan> take() { return std::move(plans_); }

 private:
  WeightInit normal() const { return normal_init(config_.initializer_range); }
  Dim vocabulary() const {
    return {config_.vocab_size, kCut,
            padded_vocabulary(config_.vocab_size, options_.tp, options_.make_vocab_size_divisible_by)};
  }
  bool tokens_are_split() const { return options_.sequence_parallel && options_.tp > 1; }

  void add(const std::string& name, std::vector<Dim> dims, WeightInit init, std::vector<Piece> pieces = {}) {
    ParameterPlan& plan = plans_.emplace_back(ParameterPlan{{}, init});
    bool cut = false;
    for (const Dim& dim : dims) cut |= dim.cut.has_value();
    plan.spec.name = name;
    plan.spec.dims = std::move(dims);
    plan.spec.pieces = std::move(pieces);
    if (!cut) plan.spec.replicated_over.push_back(GroupKind::tp);
    plan.spec.replicated_over.push_back(GroupKind::dp_cp);
  }

  // Sees only the rank's own tokens if these are split.
  void of_own_tokens(const std::string& name, int64_t size, double value) {
    add(name, {{size}}, constant_init(value));
    plans_.back().partial_over_tp = tokens_are_split();
  }
  void norm(const std::string& name) { of_own_tokens(name, config_.hidden_size, 1); }

  // One weight for several layers with the same input, each split separately.
  void fused(const std::string& prefix, const std::string& name, const std::vector<Piece>& layers, bool bias,
             bool joined) {
    int64_t rows = 0;
    for (const Piece& layer : layers) rows += layer.size;
    const auto pieces = [&](const char* kind) {
      std::vector<Piece> named;
      for (const Piece& layer : layers) named.push_back({fmt::format("{}{}.{}", prefix, layer.name, kind), layer.size});
      return named;
    };
    add(fmt::format("{}{}.weight", prefix, name), {{rows, kCut}, {config_.hidden_size}}, normal(), pieces("weight"));
    plans_.back().spec.joined = joined;
    if (!bias) return;
    add(fmt::format("{}{}.bias", prefix, name), {{rows, kCut}}, constant_init(0), pieces("bias"));
    plans_.back().spec.joined = joined;
  }

  // The projection back to the hidden size; its bias is added to the sum.
  void output(const std::string& name, int64_t inputs, bool bias) {
    add(name + ".weight", {{config_.hidden_size}, {inputs, kCut}}, normal());
    if (bias) of_own_tokens(name + ".bias", config_.hidden_size, 0);
  }

  void attention(const std::string& prefix) {
    const int64_t q = config_.num_attention_heads * config_.head_dim;
    const int64_t kv = config_.num_key_value_heads * config_.head_dim;
    fused(prefix, "qkv_proj", {{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}}, config_.qkv_bias, config_.joined_qkv);
    if (config_.qk_norm_all_heads) {
      add(prefix + "q_norm.weight", {{q, kCut}}, constant_init(1));
      add(prefix + "k_norm.weight", {{kv, kCut}}, constant_init(1));
    }
    for (const char* name : {"q_norm.weight", "k_norm.weight"}) {
      if (!config_.qk_norm) continue;
      add(prefix + name, {{config_.head_dim}}, constant_init(1));
      plans_.back().partial_over_tp = options_.tp > 1;  // each rank has seen its own heads
    }
    output(prefix + "o_proj", q, config_.output_bias);
  }

  void mlp(const std::string& prefix, int64_t inner, bool bias) {
    fused(prefix, "gate_up_proj", {{"gate_proj", inner}, {"up_proj", inner}}, bias, config_.joined_gate_up);
    output(prefix + "down_proj", inner, bias);
  }

  // Replicated, and multiplied with the rank's own tokens.
  void whole(const std::string& name, int64_t rows, std::vector<Piece> pieces) {
    add(name, {{rows}, {config_.hidden_size}}, normal(), std::move(pieces));
    plans_.back().partial_over_tp = tokens_are_split();
  }

  // A stack of one tensor per expert, of which |pieces| are behind each other along dimension 1.
  void stack(const std::string& name, Dim rows, Dim columns, std::vector<Piece> pieces) {
    add(name, {{config_.experts.num_experts}, rows, columns}, normal(), std::move(pieces));
    plans_.back().spec.stacked = true;
    plans_.back().spec.fused_dim = 1;
  }

  void experts(const std::string& layer) {
    const ExpertConfig& all = config_.experts;
    const int64_t inner = all.intermediate_size, hidden = config_.hidden_size;
    const std::string mlp_name = layer + "mlp.";
    whole(mlp_name + "router.weight", all.num_experts, {{layer + all.router, all.num_experts}});
    stack(mlp_name + "experts.gate_up_proj.weight", {2 * inner, kCut}, {hidden},
          {{layer + all.gate, inner}, {layer + all.up, inner}});
    stack(mlp_name + "experts.down_proj.weight", {hidden}, {inner, kCut}, {{layer + all.down, hidden}});
    if (all.shared_intermediate_size == 0) return;
    mlp(mlp_name + "shared_expert.", all.shared_intermediate_size, false);
    if (all.shared_gate) whole(mlp_name + "shared_expert_gate.weight", 1, {});
  }

  const ModelConfig& config_;
  const ParameterPlanOptions& options_;
  std::vector<ParameterPlan> plans_;
};

}  // namespace

std::vector<ParameterPlan> plan_parameters(const ModelConfig& config, const StageLayers& stage,
                                           const ParameterPlanOptions& options) {
  if (stage.mtp_layers > 0) {
    throw ConfigError(fmt::format(
        "the layout has {} multi-token prediction layers, which a model of type {} does not have; remove the m",
        stage.mtp_layers, config.model_type));
  }
  if (stage.first_layer < 0 || stage.layers < 0 || stage.first_layer + stage.layers > config.num_hidden_layers) {
    throw ConfigError(fmt::format("a stage has layers {} to {} (exclusive), but the model's num_hidden_layers is {}",
                                  stage.first_layer, stage.first_layer + stage.layers, config.num_hidden_layers));
  }
  Planner planner(config, options);
  if (stage.embedding) planner.embedding(stage);
  for (int64_t i = 0; i < stage.layers; ++i) planner.layer(stage.first_layer + i);
  if (stage.loss) planner.head(stage);
  return planner.take();
}

}  // namespace concord
