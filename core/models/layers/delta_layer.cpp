#include "core/models/layers/delta_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <fmt/core.h>

#include "core/ops/attention/causal_conv.h"
#include "core/ops/attention/gated_delta_rule.h"
#include "core/ops/visit_type.h"
#include "core/parallel/async_collectives.h"
#include "core/parallel/context_exchange.h"

namespace concord {

// Shapes in names: p, s, b, h as in layer_context.h, but between the exchanges s is all tokens; k, v the key and value
// heads that this rank mixes, n the size of a key, m that of a value, c the columns of several heads side by side.

using at::Tensor;

namespace {

// Returns the lengths of packed sequences, or |tokens| if they are not packed.
std::vector<int64_t> lengths_of(const std::vector<int64_t>& cu_seqlens, int64_t tokens) {
  if (cu_seqlens.empty()) return {tokens};
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) lengths.push_back(cu_seqlens[i] - cu_seqlens[i - 1]);
  return lengths;
}

// The modules of the projection and their columns on a rank of |tp|.
std::vector<LayerAdapter::Module> projections(const DeltaConfig& sizes, const std::string& name, int64_t tp) {
  const int64_t keys = sizes.keys() / tp, values = sizes.values() / tp, gates = sizes.value_heads / tp;
  if (!sizes.has_plain_projections) {
    return {{name + "in_proj_qkvz", 2 * (keys + values)}, {name + "in_proj_ba", 2 * gates}};
  }
  return {{name + "in_proj_qkv", 2 * keys + values},
          {name + "in_proj_z", values},
          {name + "in_proj_b", gates},
          {name + "in_proj_a", gates}};
}

}  // namespace

DeltaLayer::DeltaLayer(const LayerContext& context, int64_t number)
    : context_(context),
      sizes_(context.config.delta),
      number_(number),
      name_(fmt::format("model.layers.{}.linear_attn.", number)),
      key_heads_(sizes_.key_heads / (context.tp->size() * context.cp->size())),
      value_heads_(sizes_.value_heads / (context.tp->size() * context.cp->size())),
      norm_(find_norm(context, number, context.config.norms.before_attention)),
      in_(context.find(name_ + "in_proj.weight")),
      conv_(context.find(name_ + "conv1d.weight")),
      dt_bias_(context.find(name_ + "dt_bias")),
      a_log_(context.find(name_ + "A_log")),
      heads_norm_(context.find(name_ + "norm.weight")),
      output_(context.find(name_ + "out_proj.weight")),
      in_adapter_(context, name_ + "in_proj", projections(sizes_, name_, context.tp->size()),
                  context.sequence_parallel),
      output_adapter_(context, name_ + "out_proj", {{name_ + "out_proj", context.config.hidden_size}}, true) {}

Tensor DeltaLayer::project(const Tensor& normed_pbh) const {
  const ParallelLinearOptions options{.name = name_ + "in_proj", .sequence_parallel = context_.sequence_parallel};
  return in_adapter_.column(normed_pbh, *in_, nullptr, options);
}

NormedSum DeltaLayer::project(const Residual& stream) const {
  return of_normed(stream, norm_, context_, [this](const Tensor& normed_pbh) { return project(normed_pbh); });
}

Tensor DeltaLayer::own_part(const Tensor& x) const { return concord::own_part(x, *context_.cp, 0); }

// [channels, taps] of the queries, keys and values.
Tensor DeltaLayer::own_taps() const {
  const Tensor all = conv_->used().squeeze(1);
  if (context_.cp->size() == 1) return all;
  const int64_t keys = sizes_.keys() / context_.tp->size(), values = sizes_.values() / context_.tp->size();
  const auto parts = all.split_with_sizes({keys, keys, values}, 0);
  return at::cat({own_part(parts[0]), own_part(parts[1]), own_part(parts[2])}, 0);
}

// In generation, continues with the cached last inputs and caches its own last inputs of each row, without padding.
Tensor DeltaLayer::convolve(const Tensor& qkv_bsc, const LayerInputs& inputs) const {
  const Tensor weight = own_taps();
  if (inputs.cache == nullptr) return causal_conv(qkv_bsc, weight, inputs.cu_seqlens);
  const int64_t before = sizes_.taps - 1;
  Tensor earlier_bsc = inputs.cache->state_of(number_).inputs;
  if (!earlier_bsc.defined()) earlier_bsc = qkv_bsc.new_zeros({qkv_bsc.size(0), before, qkv_bsc.size(2)});
  const Tensor all_bsc = at::cat({earlier_bsc, qkv_bsc}, 1);
  inputs.cache->keep_inputs(number_, inputs.cache->last_of_rows(all_bsc, before));
  return causal_conv(all_bsc, weight).narrow(1, before, qkv_bsc.size(1));
}

// How much of the state each token keeps, as its logarithm, in the type of sums.
Tensor DeltaLayer::forgetting(const Tensor& a_bsv) const {
  const auto wide = ops::sum_type(a_bsv.scalar_type());
  return -own_part(a_log_->used()).to(wide).exp() * at::softplus(a_bsv.to(wide) + own_part(dt_bias_->used()));
}

// -> bsvm
Tensor DeltaLayer::apply_rule(const Tensor& qkv_bsc, const Tensor& g_bsv, const Tensor& beta_bsv,
                              const LayerInputs& inputs) const {
  const int64_t keys = key_heads_ * sizes_.key_dim, values = value_heads_ * sizes_.value_dim;
  const auto parts = qkv_bsc.split_with_sizes({keys, keys, values}, -1);
  const Tensor q_bskn = parts[0].unflatten(-1, {key_heads_, -1}), k_bskn = parts[1].unflatten(-1, {key_heads_, -1});
  const Tensor v_bsvm = parts[2].unflatten(-1, {value_heads_, -1});
  if (inputs.cache == nullptr)
    return gated_delta_rule(q_bskn, k_bskn, v_bsvm, g_bsv, beta_bsv, {}, inputs.cu_seqlens).out;
  const Tensor real_bs1 = inputs.cache->is_real(qkv_bsc.size(1)).unsqueeze(-1);  // padding changes nothing
  const Tensor& before = inputs.cache->state_of(number_).state;
  const DeltaRule made = gated_delta_rule(q_bskn, k_bskn, v_bsvm, g_bsv * real_bs1, beta_bsv * real_bs1, before);
  inputs.cache->keep_state(number_, made.state);
  return made.out;
}

// Like own_heads() for the projections of all heads side by side.
std::vector<Tensor> DeltaLayer::own_plain_heads(const Tensor& projected_sbc, std::span<const int64_t> lengths) const {
  const int64_t n = sizes_.key_dim, shared = sizes_.shared_by(), values = shared * sizes_.value_dim;
  const int64_t heads = key_heads_ * context_.cp->size();
  const std::vector<int64_t> of_head{n, n, values, values, shared, shared};
  std::vector<int64_t> columns;
  for (const int64_t size : of_head) columns.push_back(heads * size);
  std::vector<Tensor> parts = projected_sbc.split_with_sizes(columns, -1);
  for (Tensor& part : parts) part = part.unflatten(-1, {heads, -1});
  if (context_.cp->size() > 1) {
    parts = tokens_of_own_heads(at::cat(parts, -1), *context_.cp, lengths, 0, 2).split_with_sizes(of_head, -1);
  }
  for (Tensor& part : parts) part = part.transpose(0, 1);
  return parts;
}

// Files have for each key head its q, k, and the v and z of its value heads; and their b and a.
std::vector<Tensor> DeltaLayer::own_heads(const Tensor& projected_sbc, std::span<const int64_t> lengths) const {
  if (sizes_.has_plain_projections) return own_plain_heads(projected_sbc, lengths);
  const int64_t n = sizes_.key_dim, shared = sizes_.shared_by(), values = shared * sizes_.value_dim;
  const int64_t heads = key_heads_ * context_.cp->size(), gates = 2 * shared * heads;
  const auto both = projected_sbc.split_with_sizes({projected_sbc.size(-1) - gates, gates}, -1);
  Tensor qkvz_sbkc = both[0].unflatten(-1, {heads, -1}), ba_sbkc = both[1].unflatten(-1, {heads, -1});
  if (context_.cp->size() > 1) {
    const Tensor all_sbkc = tokens_of_own_heads(at::cat({qkvz_sbkc, ba_sbkc}, -1), *context_.cp, lengths, 0, 2);
    const auto parts = all_sbkc.split_with_sizes({qkvz_sbkc.size(-1), ba_sbkc.size(-1)}, -1);
    qkvz_sbkc = parts[0];
    ba_sbkc = parts[1];
  }
  std::vector<Tensor> parts = qkvz_sbkc.transpose(0, 1).split_with_sizes({n, n, values, values}, -1);
  for (const Tensor& gate : ba_sbkc.transpose(0, 1).split_with_sizes({shared, shared}, -1)) parts.push_back(gate);
  return parts;
}

// -> sbc
Tensor DeltaLayer::mix(const Tensor& projected_sbc, const LayerInputs& inputs) const {
  const std::vector<int64_t> lengths = lengths_of(inputs.cu_seqlens, projected_sbc.size(0) * context_.cp->size());
  const std::vector<Tensor> heads = own_heads(projected_sbc, lengths);
  const Tensor qkv_bsc = at::cat({heads[0].flatten(2), heads[1].flatten(2), heads[2].flatten(2)}, -1);
  const Tensor beta_bsv = heads[4].flatten(2).sigmoid();
  const auto wide = ops::sum_type(beta_bsv.scalar_type());
  const Tensor out_bsvm =
      apply_rule(convolve(qkv_bsc, inputs), forgetting(heads[5].flatten(2)), beta_bsv.to(wide), inputs);
  const Tensor normed_bsvm = rms_norm(out_bsvm, heads_norm_->used(), context_.config.rms_norm_eps);
  const Tensor z_bsvm = heads[3].flatten(2).unflatten(-1, {value_heads_, -1});
  const Tensor gated_bsvm = (normed_bsvm * at::silu(z_bsvm.to(wide))).to(projected_sbc.scalar_type());
  return heads_of_own_tokens(gated_bsvm.flatten(2).transpose(0, 1), *context_.cp, lengths, 0, 2);
}

Residual DeltaLayer::forward(const Residual& stream, const SharedInputs& inputs) const {
  const auto [x_pbh, projected_sbc] = project(stream);
  Tensor out_sbc;
  if (recomputes_module(context_.recompute, RecomputeModule::core_attn)) {
    const auto again = [this, inputs](const Tensor& again_sbc) { return mix(again_sbc, *inputs); };
    out_sbc = recompute_if(true, context_, projected_sbc, again);
  } else {
    out_sbc = mix(projected_sbc, *inputs);
  }
  const ParallelLinearOptions options{.name = name_ + "out_proj", .sequence_parallel = context_.sequence_parallel};
  return {x_pbh, output_adapter_.row(out_sbc.contiguous(), *output_, nullptr, options)};
}

}  // namespace concord
