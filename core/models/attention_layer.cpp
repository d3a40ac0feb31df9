#include "core/models/attention_layer.h"

#include <fmt/core.h>

#include "core/ops/attention.h"
#include "core/ops/rms_norm.h"
#include "core/ops/rope.h"
#include "core/parallel/context_attention.h"
#include "core/parallel/parallel_linear.h"

namespace concord {

// Shapes in names: p, s, b, h as in layer_context.h; q, k this rank's query and key heads, n the size of a head, c the
// columns of several heads side by side.

using at::Tensor;

AttentionLayer::AttentionLayer(const LayerContext& context, int64_t number)
    : context_(context),
      name_(fmt::format("model.layers.{}.self_attn.", number)),
      heads_(context.config.num_attention_heads / context.tp->size()),
      kv_heads_(context.config.num_key_value_heads / context.tp->size()),
      window_(context.config.windows[static_cast<size_t>(number)]),
      norm_(context.find(fmt::format("model.layers.{}.input_layernorm.weight", number))),
      qkv_(context.find(name_ + "qkv_proj.weight")),
      qkv_bias_(context.find(name_ + "qkv_proj.bias")),
      q_norm_(context.find(name_ + "q_norm.weight")),
      k_norm_(context.find(name_ + "k_norm.weight")),
      output_(context.find(name_ + "o_proj.weight")),
      output_bias_(context.find(name_ + "o_proj.bias")) {}

Tensor AttentionLayer::project(const Tensor& x_pbh) const {
  const Tensor normed_pbh = rms_norm(x_pbh, norm_->used(), context_.config.rms_norm_eps);
  const ParallelLinearOptions options{.name = name_ + "qkv_proj", .sequence_parallel = context_.sequence_parallel};
  return column_parallel_linear(normed_pbh, qkv_->used(), value_of(qkv_bias_), *context_.tp, options,
                                qkv_->grad_sink());
}

Tensor AttentionLayer::forward(const Tensor& x_pbh, const SharedInputs& inputs) const {
  const Tensor qkv_sbc = recompute_if(recomputes_module(context_.recompute, "layernorm"), context_, x_pbh,
                                      [this](const Tensor& input_pbh) { return project(input_pbh); });
  const int64_t size = context_.config.head_dim;
  const auto parts = qkv_sbc.split_with_sizes({heads_ * size, kv_heads_ * size, kv_heads_ * size}, -1);
  const auto as_heads = [&](const Tensor& part) { return part.unflatten(-1, {-1, size}); };
  Tensor q_sbqn = as_heads(parts[0]), k_sbkn = as_heads(parts[1]);
  if (q_norm_ != nullptr) {
    q_sbqn = rms_norm(q_sbqn, q_norm_->used(), context_.config.rms_norm_eps);
    k_sbkn = rms_norm(k_sbkn, k_norm_->used(), context_.config.rms_norm_eps);
  }
  q_sbqn = rope(q_sbqn, inputs->cos, inputs->sin);
  k_sbkn = rope(k_sbkn, inputs->cos, inputs->sin);
  const Tensor v_sbkn = as_heads(parts[2]).contiguous();  // a view would keep all of qkv in memory until backward
  Tensor out_sbc;
  if (recomputes_module(context_.recompute, "core_attn")) {
    const auto again = [this, inputs](const std::vector<Tensor>& qkv_heads) {
      return std::vector{core(qkv_heads[0], qkv_heads[1], qkv_heads[2], *inputs)};
    };
    out_sbc = recompute(again, {q_sbqn, k_sbkn, v_sbkn}, *context_.rng)[0];
  } else {
    out_sbc = core(q_sbqn, k_sbkn, v_sbkn, *inputs);
  }
  const ParallelLinearOptions options{.name = name_ + "o_proj", .sequence_parallel = context_.sequence_parallel};
  return row_parallel_linear(out_sbc, output_->used(), value_of(output_bias_), *context_.tp, options,
                             output_->grad_sink());
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
  const AttentionOptions options{.causal = true, .window = window_};
  const bool gathers = context_.gathers_keys || window_ > 0;
  return gathers ? gathered_attention(q, k, v, *context_.cp, options, inputs.cu_seqlens)
                 : ring_attention(q, k, v, *context_.cp, options, inputs.cu_seqlens);
}

}  // namespace concord
