// One layer of the transformer, the same for all families: x + attention, then x + MLP, each with the norm before it.
#pragma once

#include "core/models/attention_layer.h"
#include "core/models/mlp.h"

namespace concord {

class Block {
 public:
  Block(const LayerContext& context, int64_t number) : attention_(context, number), mlp_(context, number) {}

  at::Tensor forward(const at::Tensor& x, const SharedInputs& inputs) const {
    const at::Tensor seen = x.add(attention_.forward(x, inputs));
    return seen.add(mlp_.forward(seen));
  }

 private:
  AttentionLayer attention_;
  Mlp mlp_;
};

}  // namespace concord
