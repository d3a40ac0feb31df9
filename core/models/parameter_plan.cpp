#include "core/models/parameter_plan.h"

#include <fmt/core.h>

#include <cmath>
#include <utility>

#include "core/base/config_error.h"
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

class Planner {
 public:
  Planner(const ModelConfig& config, const ParameterPlanOptions& options) : config_(config), options_(options) {
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
    add("model.embed_tokens.weight", {vocabulary(), {config_.hidden_size}}, normal());
    if (!config_.tie_word_embeddings && config_.mtp_layers == 0) return;
    plans_.back().uses = stage.loss ? 1 + output_uses_of_embedding(config_) : 1;
    plans_.back().shared_embedding = !stage.loss;
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
      mlp(layer + "mlp.", config_.intermediate_size, config_.mlp_bias);
    }
    layer_norm(config_.norms.after_mlp);
  }

  // Of depth |depth|: a layer like the others, and what comes before and after it.
  void further_layer(int64_t depth) {
    const int64_t number = config_.num_hidden_layers + depth, hidden = config_.hidden_size;
    const std::string layer = fmt::format("model.layers.{}.", number);
    norm(layer + "enorm.weight");
    norm(layer + "hnorm.weight");
    add(layer + "eh_proj.weight", {{hidden}, {2 * hidden}}, normal());
    plans_.back().partial_over_tp = tokens_are_split();
    this->layer(number);
    norm(layer + "shared_head.norm.weight");
  }

  void head(const StageLayers& stage) {
    norm("model.norm.weight");
    if (config_.scores) return whole("score.weight", 1, {});
    for (int64_t i = 0; i < config_.mtp_layers; ++i) further_layer(i);
    if (!config_.tie_word_embeddings) {
      add("lm_head.weight", {vocabulary(), {config_.hidden_size}}, normal());
      plans_.back().uses = 1 + config_.mtp_layers;
      column_pairs("lm_head", {{.module = "lm_head", .rows = vocabulary()}});
    }
    if (output_uses_of_embedding(config_) > 0 && !stage.embedding && !options_.borrows_embedding) {
      add("model.embed_tokens.weight", {vocabulary(), {config_.hidden_size}}, normal());
      plans_.back().shared_embedding = true;
      plans_.back().uses = output_uses_of_embedding(config_);
    }
  }

  static std::string module_of(const std::string& parameter) { return parameter.substr(0, parameter.rfind('.')); }

  std::vector<ParameterPlan> take() { return std::move(plans_); }
  std::vector<std::string> take_modules() { return std::move(modules_); }

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
  bool tokens_are_split() const { return options_.sequence_parallel && options_.tp > 1; }

  void add(const std::string& name, std::vector<Dim> dims, WeightInit init, std::vector<Piece> pieces = {}) {
    ParameterPlan& plan = plans_.emplace_back(ParameterPlan{{}, init});
    plan.frozen = options_.adapter != nullptr && !options_.adapter->saves(module_of(name));
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
  double norm_init() const { return config_.norms_plus_one ? 0 : 1; }
  void norm(const std::string& name) { of_own_tokens(name, config_.hidden_size, norm_init()); }

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
    plans_.back().linear = true;
    if (bias) {
      add(fmt::format("{}{}.bias", prefix, name), {{rows, kCut}}, constant_init(0), pieces("bias"));
      plans_.back().spec.joined = joined;
    }
    std::vector<Column> columns;
    if (joined) columns.push_back({prefix + name, {rows, kCut}, layers});
    for (const Piece& layer : layers) {
      if (!joined) columns.push_back({prefix + layer.name, {layer.size, kCut}});
    }
    column_pairs(prefix + name, columns);
  }

  // ------------------------------------------------------------------------------------------------------- low rank

  struct Column {
    std::string module;
    Dim rows;
    std::vector<Piece> joined = {};  // of its rows
  };

  std::optional<LowRankShape> pair_of(const std::string& module) {
    modules_.push_back(module);
    return options_.adapter == nullptr ? std::nullopt : options_.adapter->find(module);
  }
  static std::string tensor_name(const std::string& module, const char* side) {
    return fmt::format("{}{}.lora_{}.weight", kAdapterPrefix, module, side);
  }
  // peft's: kaiming_uniform(a = sqrt 5) for A, nothing for B.
  void add_side(const std::string& name, std::vector<Dim> dims, WeightInit init, std::vector<Piece> pieces = {}) {
    add(name, std::move(dims), init, std::move(pieces));
    plans_.back().frozen = false;
    plans_.back().adapter = true;
  }
  // Of a module whose rows in the weight of |layer| begin with |first_row|. False where there is none.
  bool add_magnitude(const std::string& module, Dim rows, const std::string& layer, int64_t first_row) {
    if (!options_.adapter->config().use_dora) return false;
    add_side(fmt::format("{}{}.lora_magnitude_vector", kAdapterPrefix, module), {rows}, constant_init(1));
    plans_.back().norms_of = layer + ".weight";
    plans_.back().first_row = first_row;
    return true;
  }
  static WeightInit inner_init(int64_t inputs) { return uniform_init(1 / std::sqrt(static_cast<double>(inputs))); }

  void column_pairs(const std::string& layer, const std::vector<Column>& columns) {
    column_pairs(layer, columns, config_.hidden_size);
  }
  void column_pairs(const std::string& layer, const std::vector<Column>& columns, int64_t inputs) {
    std::vector<Piece> inner;
    struct Outer {
      const Column* column;
      int64_t rank, first_row;
    };
    std::vector<Outer> outer;
    int64_t ranks = 0, row = 0;
    for (const Column& column : columns) {
      const int64_t first_row = std::exchange(row, row + column.rows.size);
      const std::optional<LowRankShape> pair = pair_of(column.module);
      if (!pair) continue;
      inner.push_back({tensor_name(column.module, "A"), pair->rank});
      outer.push_back({&column, pair->rank, first_row});
      ranks += pair->rank;
    }
    if (inner.empty()) return;
    add_side(tensor_name(layer, "A"), {{ranks}, {inputs}}, inner_init(inputs), inner);
    plans_.back().partial_over_tp = tokens_are_split();
    for (const auto& [column, rank, first_row] : outer) {
      add_side(tensor_name(column->module, "B"), {column->rows, {rank}}, constant_init(0), column->joined);
      plans_.back().spec.joined = !column->joined.empty();
      const bool is_cut = column->rows.cut.has_value();
      plans_.back().partial_over_tp = !is_cut && tokens_are_split();
      if (!add_magnitude(column->module, column->rows, layer, is_cut ? first_row / options_.tp : first_row)) continue;
      plans_.back().partial_over_tp = !is_cut && tokens_are_split();
      plans_.back().spec.pieces = column->joined;
      plans_.back().spec.joined = !column->joined.empty();
    }
  }

  void row_pair(const std::string& module, int64_t inputs) {
    const std::optional<LowRankShape> pair = pair_of(module);
    if (!pair) return;
    add_side(tensor_name(module, "A"), {{pair->rank}, {inputs, kCut}}, inner_init(inputs));
    add_side(tensor_name(module, "B"), {{config_.hidden_size}, {pair->rank}}, constant_init(0));
    plans_.back().partial_over_tp = tokens_are_split();
    if (add_magnitude(module, {config_.hidden_size}, module, 0)) plans_.back().partial_over_tp = tokens_are_split();
  }

  // The same pair for every expert: |module| has {} for its number.
  std::optional<LowRankShape> pair_of_experts(const std::string& module) {
    const std::optional<LowRankShape> first = pair_of(of_expert(module, 0));
    for (int64_t i = 1; i < config_.experts.num_experts; ++i) {
      const std::optional<LowRankShape> other = pair_of(of_expert(module, i));
      const bool alike = first.has_value() == other.has_value() &&
                         (!first || (first->rank == other->rank && first->scale == other->scale));
      if (alike) continue;
      throw ConfigError(
          fmt::format("the adapter has another pair for {} than for {}; experts of a layer must be targets with "
                      "the same rank and alpha, or none of them",
                      of_expert(module, 0), of_expert(module, i)));
    }
    if (first) check_of_experts(module);
    return first;
  }
  void check_of_experts(const std::string& module) const {
    const AdapterConfig& adapter = options_.adapter->config();
    const char* const not_there = adapter.lora_dropout > 0          ? "lora_dropout"
                                  : adapter.use_dora                ? "use_dora"
                                  : adapter.modifies_base_weights() ? "init_lora_weights"
                                                                    : nullptr;
    if (not_there == nullptr) return;
    throw ConfigError(
        fmt::format("{} is not supported for pairs of experts ({}); leave it out, or choose a lora_target without "
                    "them, such as self_attn.q_proj,self_attn.k_proj,self_attn.v_proj,self_attn.o_proj",
                    not_there, module));
  }
  void add_expert_side(const std::string& name, Dim rows, Dim columns, WeightInit init, std::vector<Piece> pieces) {
    const bool is_cut = rows.cut.has_value() || columns.cut.has_value();
    of_experts(name, {rows, columns}, init, std::move(pieces));
    ParameterPlan& plan = plans_.back();
    plan.spec.stacked = true;
    plan.spec.fused_dim = 1;
    plan.frozen = false;
    plan.adapter = true;
    if (is_cut) return;
    plan.spec.replicated_over = {GroupKind::etp, GroupKind::edp};
    plan.partial_over_tp = options_.etp > 1;
  }
  void expert_pairs(const std::string& stack, const std::vector<Column>& columns, Dim inputs) {
    std::vector<Piece> inner;
    std::vector<std::pair<const Column*, int64_t>> outer;
    int64_t ranks = 0;
    for (const Column& column : columns) {
      const std::optional<LowRankShape> pair = pair_of_experts(column.module);
      if (!pair) continue;
      inner.push_back({tensor_name(column.module, "A"), pair->rank});
      outer.emplace_back(&column, pair->rank);
      ranks += pair->rank;
    }
    if (inner.empty()) return;
    add_expert_side(tensor_name(stack, "A"), {ranks}, inputs, inner_init(inputs.size), inner);
    for (const auto& [column, rank] : outer) {
      const std::string name = tensor_name(column->module, "B");
      add_expert_side(name, column->rows, {rank}, constant_init(0), {{name, column->rows.size}});
    }
  }

  // The projection back to the hidden size; its bias is added to the sum.
  void output(const std::string& name, int64_t inputs, bool bias) {
    add(name + ".weight", {{config_.hidden_size}, {inputs, kCut}}, normal());
    plans_.back().linear = true;
    if (bias) of_own_tokens(name + ".bias", config_.hidden_size, 0);
    row_pair(name, inputs);
  }

  void cut_by_outputs(const std::string& name, int64_t rows, int64_t inputs) {
    add(name + ".weight", {{rows, kCut}, {inputs}}, normal());
    plans_.back().linear = true;
    column_pairs(name, {{.module = name, .rows = {rows, kCut}}}, inputs);
  }

  // Every rank has the latents of its tokens, and makes its own heads of them.
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
    std::vector<Column> latents;
    if (query > 0) latents.push_back({prefix + "q_a_proj", {query}});
    latents.push_back({prefix + "kv_a_proj_with_mqa", {latent.compressed()}});
    column_pairs(prefix + "qkv_a_proj", latents);
    if (latent.bias) {
      of_own_tokens(prefix + "qkv_a_proj.bias", query + latent.compressed(), 0);
      plans_.back().spec.pieces = pieces("bias");
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
    fused(prefix, "in_proj", {{"in_proj_qkvz", 2 * (keys + values)}, {"in_proj_ba", 2 * heads}}, false, false);
    add(prefix + "conv1d.weight", {{2 * keys + values, kCut}, {1}, {delta.taps}}, normal(),
        {{"queries", keys}, {"keys", keys}, {"values", values}});
    plans_.back().spec.joined = true;
    add(prefix + "dt_bias", {{heads, kCut}}, constant_init(1));
    add(prefix + "A_log", {{heads, kCut}}, log_uniform_init(0.01, 16));  // as transformers has it
    add(prefix + "norm.weight", {{delta.value_dim}}, constant_init(1));
    plans_.back().partial_over_tp = options_.tp > 1;  // each rank has seen its own heads
    output(prefix + "out_proj", values, false);
  }

  void attention(const std::string& prefix) {
    if (config_.latent.used()) return latent_attention(prefix);
    const int64_t q = config_.num_attention_heads * config_.head_dim;
    const int64_t kv = config_.num_key_value_heads * config_.head_dim;
    const int64_t own_q = config_.attention_gate ? 2 * q : q;
    fused(prefix, "qkv_proj", {{"q_proj", own_q}, {"k_proj", kv}, {"v_proj", kv}}, config_.qkv_bias, config_.fused_qkv);
    if (config_.qk_norm_all_heads) {
      add(prefix + "q_norm.weight", {{q, kCut}}, constant_init(1));
      add(prefix + "k_norm.weight", {{kv, kCut}}, constant_init(1));
    }
    for (const char* name : {"q_norm.weight", "k_norm.weight"}) {
      if (!config_.qk_norm) continue;
      add(prefix + name, {{config_.head_dim}}, constant_init(norm_init()));
      plans_.back().partial_over_tp = options_.tp > 1;  // each rank has seen its own heads
    }
    if (config_.sinks) add(prefix + "sinks", {{config_.num_attention_heads, kCut}}, normal());
    output(prefix + "o_proj", q, config_.output_bias);
  }

  void mlp(const std::string& prefix, int64_t inner, bool bias) {
    fused(prefix, "gate_up_proj", {{"gate_proj", inner}, {"up_proj", inner}}, bias, config_.fused_gate_up);
    output(prefix + "down_proj", inner, bias);
  }

  // Replicated, and multiplied with the rank's own tokens.
  void whole(const std::string& name, int64_t rows, std::vector<Piece> pieces) {
    add(name, {{rows}, {config_.hidden_size}}, normal(), std::move(pieces));
    plans_.back().partial_over_tp = tokens_are_split();
  }

  // Something of each expert.
  void of_experts(const std::string& name, std::vector<Dim> dims, WeightInit init, std::vector<Piece> pieces = {}) {
    dims.insert(dims.begin(), {config_.experts.num_experts, ShardAxis::ep});
    add(name, std::move(dims), init, std::move(pieces));
    plans_.back().spec.replicated_over = {GroupKind::edp};
    plans_.back().expert = true;
  }

  // A stack of one tensor per expert, of which |pieces| are behind each other along dimension 1.
  void stack(const std::string& name, Dim rows, Dim columns, std::vector<Piece> pieces) {
    of_experts(name, {rows, columns}, normal(), std::move(pieces));
    plans_.back().spec.stacked = true;
    plans_.back().spec.fused_dim = 1;
  }

  // All experts of a layer in one tensor, as files have it. Ranks that have parts of an expert add up parts of its
  // results, so each adds a share of the last bias.
  void stacked_in_files(const std::string& layer) {
    const ExpertConfig& all = config_.experts;
    const int64_t inner = all.intermediate_size, hidden = config_.hidden_size;
    of_experts(layer + all.gate_up, {{hidden}, {2 * inner, ShardAxis::etp}}, normal());
    of_experts(layer + all.gate_up + "_bias", {{2 * inner, ShardAxis::etp}}, constant_init(0));
    of_experts(layer + all.down, {{inner, ShardAxis::etp}, {hidden}}, normal());
    of_experts(layer + all.down + "_bias", {{hidden}}, constant_init(0));
    plans_.back().spec.replicated_over = {GroupKind::etp, GroupKind::edp};
    plans_.back().partial_over_tp = options_.etp > 1;
  }

  void experts(const std::string& layer) {
    const ExpertConfig& all = config_.experts;
    const int64_t inner = all.intermediate_size, hidden = config_.hidden_size;
    const std::string mlp_name = layer + "mlp.";
    whole(mlp_name + "router.weight", all.num_experts, {{layer + all.router, all.num_experts}});
    if (!all.stacked_in_files) column_pairs(mlp_name + "router", {{module_of(layer + all.router), {all.num_experts}}});
    if (!all.router_bias.empty()) {
      add(mlp_name + "router.logit_bias", {{all.num_experts}}, normal(), {{layer + all.router_bias, all.num_experts}});
      plans_.back().partial_over_tp = tokens_are_split();
    }
    if (!all.bias.empty()) {
      add(mlp_name + "router.bias", {{all.num_experts}}, constant_init(0), {{layer + all.bias, all.num_experts}});
      plans_.back().buffer = true;
    }
    if (all.stacked_in_files) return stacked_in_files(layer);
    stack(mlp_name + "experts.gate_up_proj.weight", {2 * inner, ShardAxis::etp}, {hidden},
          {{layer + all.gate, inner}, {layer + all.up, inner}});
    expert_pairs(
        mlp_name + "experts.gate_up_proj",
        {{module_of(layer + all.gate), {inner, ShardAxis::etp}}, {module_of(layer + all.up), {inner, ShardAxis::etp}}},
        {hidden});
    stack(mlp_name + "experts.down_proj.weight", {hidden}, {inner, ShardAxis::etp}, {{layer + all.down, hidden}});
    expert_pairs(mlp_name + "experts.down_proj", {{module_of(layer + all.down), {hidden}}}, {inner, ShardAxis::etp});
    if (all.shared_intermediate_size == 0) return;
    mlp(layer + all.shared, all.shared_intermediate_size, false);
    if (!all.shared_gate) return;
    whole(mlp_name + "shared_expert_gate.weight", 1, {});
    column_pairs(mlp_name + "shared_expert_gate", {{mlp_name + "shared_expert_gate", {1}}});
  }

  const ModelConfig& config_;
  const ParameterPlanOptions& options_;
  std::vector<ParameterPlan> plans_;
  std::vector<std::string> modules_;  // that can have a pair
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
        "they must be as many, next to the L",
        stage.mtp_layers, stage.loss ? "with" : "without", config.mtp_layers));
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
      whole.push_back(Planner::module_of(plan.spec.name));
    }
  }
  return with_targets(std::move(adapter), planner.take_modules(), whole);
}

}  // namespace concord
