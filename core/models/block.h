// One layer of the transformer, the same for all families: x + attention, then x + MLP, each with the norm before it.
// The MLP of some layers, or of all, is a mixture of experts.
#pragma once

#include <optional>

#include "core/models/attention_layer.h"
#include "core/models/mlp.h"
#include "core/models/moe_mlp.h"

namespace concord {

class Block {
 public:
  Block(const LayerContext& context, int64_t number) : attention_(context, number) {
    if (context.config.experts.has_layer(number)) {
      experts_.emplace(context, number);
    } else {
      mlp_.emplace(context, number);
    }
  }

  at::Tensor forward(const at::Tensor& x_pbh, const SharedInputs& inputs) const {
    const at::Tensor seen_pbh = x_pbh.add(attention_.forward(x_pbh, inputs));
    return seen_pbh.add(experts_ ? experts_->forward(seen_pbh, inputs) : mlp_->forward(seen_pbh));
  }

 private:
  AttentionLayer attention_;
  std::optional<Mlp> mlp_;  // one of the two
  std::optional<MoeMlp> experts_;
};

}  // namespace concord
