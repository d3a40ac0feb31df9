// The first half of a layer: x -> o(attention(rope(q), rope(k), v)), q, k, v = qkv(norm(x)). Heads are split over the
// tensor-parallel group, tokens over the context-parallel one.
#pragma once

#include <optional>

#include "core/models/adapters/layer_adapter.h"
#include "core/models/layers/latent_heads.h"
#include "core/models/layers/layer_context.h"
#include "core/ops/attention/rope.h"
#include "core/ops/attention/rope_angles.h"

namespace concord {

class AttentionLayer {
 public:
  // The attention of layer |number| of the model. |context| has to outlive it and every backward.
  AttentionLayer(const LayerContext& context, int64_t number);
  // Returns the residual stream with this layer's output as its pending branch. The branch pending in |stream| has been
  // added.
  Residual forward(const Residual& stream, const SharedInputs& inputs) const;

 private:
  at::Tensor project(const at::Tensor& normed_pbh) const;  // the q, k and v of this rank's heads
  NormedSum project(const Residual& stream) const;         // the stream's sum and these
  bool norms_each_head() const;                            // queries and keys, with plain factors
  HeadsOfSum heads_of(const Residual& stream, const LayerInputs& inputs) const;
  Heads heads_of(const at::Tensor& projected_sbc, const LayerInputs& inputs) const;
  Heads rotated_heads(const at::Tensor& projected_sbc, const LayerInputs& inputs) const;
  at::Tensor with_whole_head(const at::Tensor& qkv_sbc) const;
  at::Tensor normed_together(const at::Tensor& x_sbc, const Parameter* norm) const;
  RopeAngles angles_of(const LayerInputs& inputs) const;
  at::Tensor core(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const LayerInputs& inputs) const;
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const LayerInputs& inputs) const;

  const LayerContext& context_;
  int64_t number_;
  std::string name_;
  int64_t heads_, kv_heads_;  // of this rank
  int64_t key_columns_;       // columns of keys (or values) on this rank: its key heads, or a part of one
  int64_t window_;
  bool rotates_;
  bool has_window_rope_;
  const Parameter *norm_, *qkv_, *qkv_bias_, *q_norm_, *k_norm_, *sinks_, *output_, *output_bias_;
  LayerAdapter qkv_adapter_, output_adapter_;
  Fp8Layer *qkv_fp8_ = nullptr, *output_fp8_ = nullptr;  // null: in the model's type
  std::optional<LatentHeads> latent_;                    // in place of qkv
};

}  // namespace concord
