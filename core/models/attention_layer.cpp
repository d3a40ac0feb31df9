#include "core/models/attention_layer.h"

#include "core/ops/attention.h"
#include "core/ops/rms_norm.h"
#include "core/ops/rope.h"
#include "core/parallel/context_attention.h"
#include "core/parallel/parallel_linear.h"
#include "platform/loader/text.h"

namespace concord {

using at::Tensor;
using loader::cat;

AttentionLayer::AttentionLayer(const LayerContext& context, int64_t number)
    : context_(context),
      name_(cat("model.layers.", number, ".self_attn.")),
      heads_(context.config.num_attention_heads / context.tp->size()),
      kv_heads_(context.config.num_key_value_heads / context.tp->size()),
      window_(context.config.windows[static_cast<size_t>(number)]),
      norm_(context.find(cat("model.layers.", number, ".input_layernorm.weight"))),
      qkv_(context.find(name_ + "qkv_proj.weight")),
      qkv_bias_(context.find(name_ + "qkv_proj.bias")),
      q_norm_(context.find(name_ + "q_norm.weight")),
      k_norm_(context.find(name_ + "k_norm.weight")),
      output_(context.find(name_ + "o_proj.weight")),
      output_bias_(context.find(name_ + "o_proj.bias")) {}

Tensor AttentionLayer::project(const Tensor& x) const {
  const Tensor normed = rms_norm(x, norm_->used(), context_.config.rms_norm_eps);
  const ParallelLinearOptions options{.name = name_ + "qkv_proj", .sequence_parallel = context_.sequence_parallel};
  return column_parallel_linear(normed, qkv_->used(), value_of(qkv_bias_), *context_.tp, options, qkv_->grad_sink());
}

Tensor AttentionLayer::forward(const Tensor& x, const SharedInputs& inputs) const {
  const Tensor qkv = recompute_if(recomputes_module(context_.recompute, "layernorm"), context_, x,
                                  [this](const Tensor& input) { return project(input); });
  const int64_t size = context_.config.head_dim;
  const auto parts = qkv.split_with_sizes({heads_ * size, kv_heads_ * size, kv_heads_ * size}, -1);
  const auto as_heads = [&](const Tensor& part) { return part.unflatten(-1, {-1, size}); };
  Tensor q = as_heads(parts[0]), k = as_heads(parts[1]);
  if (q_norm_ != nullptr) {
    q = rms_norm(q, q_norm_->used(), context_.config.rms_norm_eps);
    k = rms_norm(k, k_norm_->used(), context_.config.rms_norm_eps);
  }
  q = rope(q, inputs->cos, inputs->sin);
  k = rope(k, inputs->cos, inputs->sin);
  const Tensor v = as_heads(parts[2]).contiguous();  // a view would keep all of qkv alive until backward
  Tensor out;
  if (recomputes_module(context_.recompute, "core_attn")) {
    const auto again = [this, inputs](const std::vector<Tensor>& qkv_heads) {
      return std::vector{core(qkv_heads[0], qkv_heads[1], qkv_heads[2], *inputs)};
    };
    out = recompute(again, {q, k, v}, *context_.rng)[0];
  } else {
    out = core(q, k, v, *inputs);
  }
  const ParallelLinearOptions options{.name = name_ + "o_proj", .sequence_parallel = context_.sequence_parallel};
  return row_parallel_linear(out, output_->used(), value_of(output_bias_), *context_.tp, options, output_->grad_sink());
}

// [S / cp, B, heads, n] -> [S / cp, B, heads * n]
Tensor AttentionLayer::core(const Tensor& q, const Tensor& k, const Tensor& v, const LayerInputs& inputs) const {
  if (!inputs.cu_seqlens.empty()) {  // B is 1
    return attend(q.squeeze(1), k.squeeze(1), v.squeeze(1), inputs).flatten(1).unsqueeze(1);
  }
  const Tensor out = attend(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), inputs);
  return out.transpose(0, 1).flatten(2);
}

Tensor AttentionLayer::attend(const Tensor& q, const Tensor& k, const Tensor& v, const LayerInputs& inputs) const {
  const AttentionOptions options{.causal = true, .window = window_};
  const bool gathers = context_.gathers_keys || window_ > 0;
  return gathers ? gathered_attention(q, k, v, *context_.cp, options, inputs.cu_seqlens)
                 : ring_attention(q, k, v, *context_.cp, options, inputs.cu_seqlens);
}

}  // namespace concord
