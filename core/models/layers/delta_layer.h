// The first half of a layer with a gated delta net in place of attention (core/models/delta_config.h):
//
//   q, k, v, z, b, a = in(norm(x));   q, k, v = silu(conv(q, k, v))
//   x -> out(norm(rule(q, k, v, -exp(A) softplus(a + dt), sigmoid(b))) silu(z))
//
// with rule that of core/ops/attention/gated_delta_rule.h. Heads are split over the tensor-parallel group. The rule
// needs all tokens of a sequence: between in and out, ranks of the context-parallel group exchange them for heads
// (core/parallel/context_exchange.h). In generation the state and the last inputs of the convolution are in the cache.
#pragma once

#include "core/models/adapters/layer_adapter.h"
#include "core/models/layers/kv_cache.h"
#include "core/models/layers/layer_context.h"

namespace concord {

class DeltaLayer {
 public:
  // The gated delta net of layer |number| of the model. |context| has to outlive it and every backward.
  DeltaLayer(const LayerContext& context, int64_t number);
  // Returns the residual stream with this layer's output as its pending branch. The branch pending in |stream| has been
  // added.
  Residual forward(const Residual& stream, const SharedInputs& inputs) const;

 private:
  at::Tensor project(const at::Tensor& normed_pbh) const;
  NormedSum project(const Residual& stream) const;
  at::Tensor mix(const at::Tensor& projected_sbc, const LayerInputs& inputs) const;
  // All tokens of the heads that this rank mixes: q, k, v, z, b, a of each key head. -> bskc each
  std::vector<at::Tensor> own_heads(const at::Tensor& projected_sbc, std::span<const int64_t> lengths) const;
  std::vector<at::Tensor> own_plain_heads(const at::Tensor& projected_sbc, std::span<const int64_t> lengths) const;
  // Selects the heads that this rank mixes from a parameter of the tensor-parallel rank's heads.
  at::Tensor own_part(const at::Tensor& x) const;
  at::Tensor own_taps() const;
  at::Tensor convolve(const at::Tensor& qkv_bsc, const LayerInputs& inputs) const;
  at::Tensor forgetting(const at::Tensor& a_bsv) const;
  at::Tensor apply_rule(const at::Tensor& qkv_bsc, const at::Tensor& g_bsv, const at::Tensor& beta_bsv,
                        const LayerInputs& inputs) const;

  const LayerContext& context_;
  const DeltaConfig& sizes_;
  int64_t number_;
  std::string name_;
  int64_t key_heads_, value_heads_;  // that this rank mixes
  const Parameter *norm_, *in_, *conv_, *dt_bias_, *a_log_, *heads_norm_, *output_;
  LayerAdapter in_adapter_, output_adapter_;
};

}  // namespace concord
