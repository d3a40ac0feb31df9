// The second half of a layer: x -> down(silu(gate(norm(x))) * up(norm(x))). The inner size is split over the
// tensor-parallel group.
//
// With LayerContext::mlp_tiles, T, the positions of a rank are divided into T tiles as equal as possible, computed one
// after the other (DeepSpeed's TiledMLP, Bekman et al., "Arctic Long Sequence Training", 2025). A tile is recomputed in
// backward, so gate, up and their product exist for one tile at a time. A token's output does not depend on other
// tokens. The gradient of a weight is the sum over tiles, in another order of additions than without tiles; the weight
// receives T additions (Parameter::uses), from tiles without positions too.
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
  at::Tensor in_tiles(const at::Tensor& normed_pbh) const;

  const LayerContext& context_;
  const Parameter* norm_;
  GatedMlp gated_;
};

}  // namespace concord
