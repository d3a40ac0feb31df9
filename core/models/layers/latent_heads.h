// The queries, keys and values of multi-head latent attention (latent_config.h): a token is projected to its latents,
// which are normed and projected to the heads.
//
//   q, c, r = qkv_a(norm(x))          latents of queries, of keys and values, and the key part that all heads share
//   q_i     = q_b(norm(q))            or q_proj(norm(x)), where queries have no latent
//   k_i v_i = kv_b(norm(c)),  k_i = [k_i, rope(r)],  the last part of q_i is rotated too
//
// Latents are small, so every tensor-parallel rank holds the whole latents of its tokens and computes its own heads.
#pragma once

#include "core/models/adapters/layer_adapter.h"
#include "core/models/layers/layer_context.h"
#include "core/ops/attention/rope.h"

namespace concord {

// The residual stream's sum and the heads made of it.
struct HeadsOfSum {
  at::Tensor sum_pbh;
  Heads heads;
  at::Tensor gate_sbc = {};  // gate of the heads' outputs, before the sigmoid; undefined: none
};

class LatentHeads {
 public:
  // |name| is what the names of its parameters begin with, |norm| that of the layer's input. |context| has to outlive
  // it and every backward.
  LatentHeads(const LayerContext& context, const std::string& name, const Parameter* norm);
  // Returns the sum of |stream| and its heads. Value heads may have a different width than query and key heads.
  HeadsOfSum heads_of(const Residual& stream, const LayerInputs& inputs) const;

 private:
  std::vector<at::Tensor> project(const at::Tensor& normed_pbh) const;  // latents, and queries that have none
  at::Tensor queries(const std::vector<at::Tensor>& projected) const;
  at::Tensor shared_key(const at::Tensor& part_pbr, const LayerInputs& inputs) const;
  at::Tensor normed_latent(const at::Tensor& latent, const Parameter* norm) const;
  ParallelLinearOptions options(const std::string& layer) const;

  const LayerContext& context_;
  const LatentConfig& sizes_;
  std::string name_;
  int64_t heads_;  // of this rank
  const Parameter *norm_, *down_, *down_bias_, *q_norm_, *q_, *kv_norm_, *kv_;
  LayerAdapter down_adapter_, q_adapter_, kv_adapter_;
};

}  // namespace concord
