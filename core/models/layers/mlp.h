// The second half of a layer: x -> down(silu(gate(norm(x))) * up(norm(x))). The inner size is split over the
// tensor-parallel group.
#pragma once

#include "core/models/adapters/layer_adapter.h"

namespace concord {

// Without the norm.
class GatedMlp {
 public:
  // |name| is what the names of its parameters begin with, "model.layers.0.mlp.".
  GatedMlp(const LayerContext& context, std::string name);
  at::Tensor forward(const at::Tensor& normed_pbh) const;  // both, -> pbh
  at::Tensor gate_up(const at::Tensor& normed_pbh) const;  // -> sbc
  at::Tensor down(const at::Tensor& both_sbc) const;       // -> pbh

 private:
  const LayerContext& context_;
  std::string name_;
  const Parameter *gate_up_, *gate_up_bias_, *down_, *down_bias_;
  LayerAdapter gate_up_adapter_, down_adapter_;
  Fp8Layer *gate_up_fp8_, *down_fp8_;  // null: in the model's type
};

class Mlp {
 public:
  // The MLP of layer |number| of the model. |context| has to outlive it and every backward.
  Mlp(const LayerContext& context, int64_t number);
  // Returns the residual stream with this layer's output as its pending branch. The branch pending in |stream| has been
  // added.
  Residual forward(const Residual& stream) const;

 private:
  Residual whole(const Residual& stream) const;

  const LayerContext& context_;
  const Parameter* norm_;
  GatedMlp gated_;
};

}  // namespace concord
