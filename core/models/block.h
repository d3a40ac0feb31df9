// One layer of the transformer, the same for all families: x + attention, then x + MLP. Families differ in where norms
// are: before each of the two, after what it adds, or both. The MLP of some layers, or of all, is a mixture of experts.
#pragma once

#include <optional>

#include "core/models/attention_layer.h"
#include "core/models/mlp.h"
#include "core/models/moe_mlp.h"

namespace concord {

class Block {
 public:
  Block(const LayerContext& context, int64_t number)
      : context_(context),
        attention_(context, number),
        after_attention_(find_norm(context, number, context.config.norms.after_attention)),
        after_mlp_(find_norm(context, number, context.config.norms.after_mlp)) {
    if (context.config.experts.has_layer(number)) {
      experts_.emplace(context, number);
    } else {
      mlp_.emplace(context, number);
    }
  }

  at::Tensor forward(const at::Tensor& x_pbh, const SharedInputs& inputs) const {
    const double multiplier = context_.config.residual_multiplier;
    const at::Tensor seen_pbh = normed(attention_.forward(x_pbh, inputs), after_attention_, context_);
    const at::Tensor half_pbh = x_pbh.add(seen_pbh, multiplier);
    const at::Tensor made_pbh = experts_ ? experts_->forward(half_pbh, inputs) : mlp_->forward(half_pbh);
    return half_pbh.add(normed(made_pbh, after_mlp_, context_), multiplier);
  }

 private:
  const LayerContext& context_;
  AttentionLayer attention_;
  const Parameter *after_attention_, *after_mlp_;  // null: none
  std::optional<Mlp> mlp_;                         // one of the two
  std::optional<MoeMlp> experts_;
};

}  // namespace concord
