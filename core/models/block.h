// One layer of the transformer, the same for all families: x + attention, then x + MLP, each with the norm before it.
#pragma once

#include "core/models/attention_layer.h"
#include "core/models/mlp.h"

namespace concord {

class Block {
 public:
  Block(const LayerContext& context, int64_t number) : attention_(context, number), mlp_(context, number) {}

  at::Tensor forward(const at::Tensor& x_pbh, const SharedInputs& inputs) const {
    const at::Tensor seen_pbh = x_pbh.add(attention_.forward(x_pbh, inputs));
    return seen_pbh.add(mlp_.forward(seen_pbh));
  }

 private:
  AttentionLayer attention_;
  Mlp mlp_;
};

}  // namespace concord
