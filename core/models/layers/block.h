// One layer of the transformer, the same for all families: x + attention, then x + MLP. Families differ in where norms
// are: before each of the two, after what it adds, or both. The attention of some layers may be a gated delta net, and
// the MLP of some, or of all, a mixture of experts.
#pragma once

#include <optional>

#include "core/models/layers/attention_layer.h"
#include "core/models/layers/delta_layer.h"
#include "core/models/layers/mlp.h"
#include "core/models/layers/moe_mlp.h"

namespace concord {

class Block {
 public:
  Block(const LayerContext& context, int64_t number)
      : context_(context),
        number_(number),
        after_attention_(find_norm(context, number, context.config.norms.after_attention)),
        after_mlp_(find_norm(context, number, context.config.norms.after_mlp)) {
    if (context.config.delta.has_layer(number)) {
      delta_.emplace(context, number);
    } else {
      attention_.emplace(context, number);
    }
    if (context.config.experts.has_layer(number)) {
      experts_.emplace(context, number);
    } else {
      mlp_.emplace(context, number);
    }
  }

  Residual forward(const Residual& stream, const SharedInputs& inputs) const {
    Residual half = delta_ ? delta_->forward(stream, inputs) : attention_->forward(stream, inputs);
    half.branch_pbh = dropped(normed(half.branch_pbh, after_attention_, context_), *inputs, DropoutPart::attention);
    Residual whole = experts_ ? experts_->forward(half, inputs) : mlp_->forward(half);
    whole.branch_pbh = dropped(normed(whole.branch_pbh, after_mlp_, context_), *inputs, DropoutPart::mlp);
    return whole;
  }

 private:
  at::Tensor dropped(const at::Tensor& branch_pbh, const LayerInputs& inputs, DropoutPart part) const {
    if (!inputs.dropout) return branch_pbh;
    return hidden_dropout(branch_pbh, *inputs.dropout, dropout_site(number_, part));
  }

  const LayerContext& context_;
  int64_t number_;
  std::optional<AttentionLayer> attention_;  // one of the two
  std::optional<DeltaLayer> delta_;
  const Parameter *after_attention_, *after_mlp_;  // null: none
  std::optional<Mlp> mlp_;                         // one of the two
  std::optional<MoeMlp> experts_;
};

}  // namespace concord
