#include "core/models/layers/attention_layer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>
#include <fmt/core.h>

#include "core/models/layers/kv_cache.h"
#include "core/ops/attention/attention.h"
#include "core/ops/norm/norm_rope.h"
#include "core/parallel/context_attention.h"
#include "core/parallel/mappings.h"

namespace concord {

// Shapes in names: p, s, b, h as in layer_context.h; q, k this rank's query and key heads, n the size of a head, c the
// columns of several heads side by side.

using at::Tensor;

AttentionLayer::AttentionLayer(const LayerContext& context, int64_t number)
    : context_(context),
      number_(number),
      name_(fmt::format("model.layers.{}.self_attn.", number)),
      heads_(context.config.num_attention_heads / context.tp->size()),
      kv_heads_(context.config.kv_heads_of_rank(context.tp->size())),
      key_columns_(context.config.num_key_value_heads * context.config.head_dim / context.tp->size()),
      window_(context.config.window_of(number)),
      rotates_(context.config.rotates(number)),
      has_window_rope_(window_ > 0 && context.config.window_rope.has_value()),
      norm_(find_norm(context, number, context.config.norms.before_attention)),
      qkv_(context.find(name_ + "qkv_proj.weight")),
      qkv_bias_(context.find(name_ + "qkv_proj.bias")),
      q_norm_(context.find(name_ + context.config.q_norm + ".weight")),
      k_norm_(context.find(name_ + context.config.k_norm + ".weight")),
      sinks_(context.find(name_ + "sinks")),
      output_(context.find(name_ + "o_proj.weight")),
      output_bias_(context.find(name_ + "o_proj.bias")),
      output_adapter_(context, name_ + "o_proj", {{name_ + "o_proj", context.config.hidden_size}}, true),
      output_fp8_(context.add_fp8(output_->spec.name)) {
  if (context.config.latent.used()) {
    latent_.emplace(context, name_, norm_);
    return;
  }
  qkv_fp8_ = context.add_fp8(qkv_->spec.name);
  const int64_t size = context.config.head_dim, keys = key_columns_;
  const int64_t queries = heads_ * size * (context.config.attention_gate ? 2 : 1);
  std::vector<LayerAdapter::Module> modules{
      {name_ + "q_proj", queries}, {name_ + "k_proj", keys}, {name_ + "v_proj", keys}};
  if (context.config.fused_qkv) modules = {{name_ + "qkv_proj", queries + 2 * keys}};
  qkv_adapter_ = {context, name_ + "qkv_proj", modules, context.sequence_parallel};
}

Tensor AttentionLayer::project(const Tensor& normed_pbh) const {
  const ParallelLinearOptions options{
      .name = name_ + "qkv_proj", .sequence_parallel = context_.sequence_parallel, .fp8 = qkv_fp8_};
  return qkv_adapter_.column(normed_pbh, *qkv_, qkv_bias_, options);
}

NormedSum AttentionLayer::project(const Residual& stream) const {
  return of_normed(stream, norm_, context_, [this](const Tensor& normed_pbh) { return project(normed_pbh); });
}

// The norm over all heads of a token, of which this rank has a part: squares are added up over the ranks, and so are
// the gradients of the sum, which every rank's part depends on.
Tensor AttentionLayer::normed_together(const Tensor& x_sbc, const Parameter* norm) const {
  ProcessGroup& tp = *context_.tp;
  if (tp.size() == 1) return normed(x_sbc, norm, context_);
  const Tensor wide_sbc = x_sbc.to(x_sbc.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const Tensor own_sb1 = wide_sbc.square().sum(-1, /*keepdim=*/true);
  const Tensor all_sb1 = copy_to_region(reduce_from_region(own_sb1, tp), tp);
  const auto columns = static_cast<double>(x_sbc.size(-1) * tp.size());
  const Tensor scale_sb1 = all_sb1.div(columns).add(context_.config.rms_norm_eps).rsqrt();
  return wide_sbc.mul(scale_sb1).to(x_sbc.scalar_type()).mul(norm->used());
}

// With more ranks than key heads, the weights of a head's keys and values are split over the ranks whose queries need
// it: each makes a part of them, and all get the whole head. The gradients of a part are summed over these ranks.
Tensor AttentionLayer::with_whole_head(const Tensor& qkv_sbc) const {
  const int64_t size = context_.config.head_dim;
  const auto parts = qkv_sbc.split_with_sizes({heads_ * size, key_columns_, key_columns_}, -1);
  const Tensor k_sbc = context_.config.qk_norm_all_heads ? normed_together(parts[1], k_norm_) : parts[1];
  const Tensor all_2sbc = gather_into_region(at::stack({k_sbc, parts[2]}), *context_.tp, -1);
  const int64_t head = context_.tp->rank() * key_columns_ / size;
  const auto own_2sbn = all_2sbc.narrow(-1, head * size, size).unbind(0);
  return at::cat({parts[0], own_2sbn[0], own_2sbn[1]}, -1);
}

bool AttentionLayer::norms_each_head() const {
  const bool plain = !context_.config.qk_norm_all_heads && !context_.config.norms_plus_one;
  return plain && q_norm_ != nullptr && k_norm_ != nullptr;
}

// Applies the factors of queries, which only long sequences have.
Heads AttentionLayer::heads_of(const Tensor& projected_sbc, const LayerInputs& inputs) const {
  Heads heads = rotated_heads(projected_sbc, inputs);
  if (inputs.query_scale.defined()) {
    heads.q = heads.q.mul(inputs.query_scale.unsqueeze(-1).to(heads.q.scalar_type()));
  }
  return heads;
}

Heads AttentionLayer::rotated_heads(const Tensor& projected_sbc, const LayerInputs& inputs) const {
  const bool shares_head = key_columns_ < kv_heads_ * context_.config.head_dim;
  const Tensor qkv_sbc = shares_head ? with_whole_head(projected_sbc) : projected_sbc;
  if (rotates_ && !context_.config.interleaved_rope) {
    const auto [cos, sin] = angles_of(inputs);
    if (q_norm_ == nullptr && k_norm_ == nullptr) return rope_qkv(qkv_sbc, cos, sin, heads_, kv_heads_);
    if (context_.config.qk_norm_after_rope) {
      const Heads heads = rope_qkv(qkv_sbc, cos, sin, heads_, kv_heads_);
      return {normed(heads.q, q_norm_, context_), normed(heads.k, k_norm_, context_), heads.v};
    }
    if (norms_each_head()) {
      const HeadNorms norms{q_norm_->used(), k_norm_->used(), context_.config.rms_norm_eps};
      return norm_rope_qkv(qkv_sbc, norms, cos, sin, heads_, kv_heads_);
    }
  }
  const int64_t size = context_.config.head_dim;
  const auto parts = qkv_sbc.split_with_sizes({heads_ * size, kv_heads_ * size, kv_heads_ * size}, -1);
  const auto as_heads = [&](const Tensor& part) { return part.unflatten(-1, {-1, size}); };
  const bool together = context_.config.qk_norm_all_heads;
  Tensor q_sbqn = as_heads(together ? normed_together(parts[0], q_norm_) : parts[0]);
  Tensor k_sbkn = as_heads(together && !shares_head ? normed_together(parts[1], k_norm_) : parts[1]);
  if (!together) {
    q_sbqn = normed(q_sbqn, q_norm_, context_);
    k_sbkn = normed(k_sbkn, k_norm_, context_);
  }
  if (rotates_) {
    q_sbqn = rotated(q_sbqn, angles_of(inputs), context_);
    k_sbkn = rotated(k_sbkn, angles_of(inputs), context_);
  }
  return {q_sbqn, k_sbkn, as_heads(parts[2]).contiguous()};  // a view would keep all of qkv in memory until backward
}

HeadsOfSum AttentionLayer::heads_of(const Residual& stream, const LayerInputs& inputs) const {
  const auto [sum_pbh, qkv_sbc] = project(stream);
  if (!context_.config.attention_gate) return {sum_pbh, heads_of(qkv_sbc, inputs)};
  const int64_t size = context_.config.head_dim, keys = 2 * key_columns_;  // and values
  const auto parts = qkv_sbc.split_with_sizes({2 * heads_ * size, keys}, -1);
  const auto queries = parts[0].unflatten(-1, {heads_, -1}).split_with_sizes({size, size}, -1);
  return {sum_pbh, heads_of(at::cat({queries[0].flatten(2), parts[1]}, -1), inputs), queries[1].flatten(2)};
}

Residual AttentionLayer::forward(const Residual& stream, const SharedInputs& inputs) const {
  const auto [x_pbh, heads, gate_sbc] = latent_ ? latent_->heads_of(stream, *inputs) : heads_of(stream, *inputs);
  const auto& [q_sbqn, k_sbkn, v_sbkn] = heads;
  Tensor out_sbc;
  if (recomputes_module(context_.recompute, RecomputeModule::core_attn)) {
    const auto again = [this, inputs](const std::vector<Tensor>& qkv_heads) {
      return std::vector{core(qkv_heads[0], qkv_heads[1], qkv_heads[2], *inputs)};
    };
    out_sbc = recompute(again, {q_sbqn, k_sbkn, v_sbkn}, *context_.rng)[0];
  } else {
    out_sbc = core(q_sbqn, k_sbkn, v_sbkn, *inputs);
  }
  if (gate_sbc.defined()) out_sbc = out_sbc.mul(gate_sbc.sigmoid());
  const ParallelLinearOptions options{
      .name = name_ + "o_proj", .sequence_parallel = context_.sequence_parallel, .fp8 = output_fp8_};
  return {x_pbh, output_adapter_.row(out_sbc, *output_, output_bias_, options)};
}

RopeAngles AttentionLayer::angles_of(const LayerInputs& inputs) const {
  return has_window_rope_ ? RopeAngles{inputs.window_cos, inputs.window_sin} : RopeAngles{inputs.cos, inputs.sin};
}

// Returns sbc.
Tensor AttentionLayer::core(const Tensor& q_sbqn, const Tensor& k_sbkn, const Tensor& v_sbkn,
                            const LayerInputs& inputs) const {
  if (!inputs.cu_seqlens.empty()) {  // b is 1
    return attend(q_sbqn.squeeze(1), k_sbkn.squeeze(1), v_sbkn.squeeze(1), inputs).flatten(1).unsqueeze(1);
  }
  const Tensor out_bsqn = attend(q_sbqn.transpose(0, 1), k_sbkn.transpose(0, 1), v_sbkn.transpose(0, 1), inputs);
  return out_bsqn.transpose(0, 1).flatten(2);
}

Tensor AttentionLayer::attend(const Tensor& q, const Tensor& k, const Tensor& v, const LayerInputs& inputs) const {
  const int64_t own = v.size(-1), width = std::max(q.size(-1), own);
  if (own != q.size(-1)) {  // the kernels take heads of one width: zeros add nothing to a product, and are cut off
    const auto wide = [width](const Tensor& x) { return at::constant_pad_nd(x, {0, width - x.size(-1)}); };
    return attend(wide(q), wide(k), wide(v), inputs).narrow(-1, 0, own);
  }
  AttentionOptions options{.causal = true, .window = window_};
  if (const double scale = context_.config.attention_multiplier; scale > 0) options.scale = scale;
  options.cap = context_.config.attn_logit_softcapping;
  options.sinks = value_of(sinks_);
  if (inputs.cache != nullptr) return inputs.cache->attend(number_, q, k, v, options);
  if (inputs.dropout) {
    const LayerDropout& dropout = *inputs.dropout;
    options.dropout = {.p = dropout.attention,
                       .key = dropout.key,
                       .site = dropout_site(number_, DropoutPart::attention_probabilities),
                       .row = dropout.first_row,
                       .head = context_.tp->rank() * heads_};
  }
  if (context_.cp_comm_type == CpCommType::a2a) {
    return ulysses_attention(q, k, v, *context_.cp, options, inputs.cu_seqlens);
  }
  const bool gathers = context_.cp_comm_type == CpCommType::all_gather || window_ > 0 || options.dropout.p > 0;
  return gathers ? gathered_attention(q, k, v, *context_.cp, options, inputs.cu_seqlens)
                 : ring_attention(q, k, v, *context_.cp, options, inputs.cu_seqlens);
}

}  // namespace concord
