// A layer of multi-token prediction (DeepSeek-AI, "DeepSeek-V3 technical report", 2024), in Megatron's form. The one of
// depth k predicts the token after the next k: for each token
//
//   h_k = norm(block(eh_proj([enorm(embedding of the token k later), hnorm(h_{k-1})])))
//
// where h_0 is the output of the model's last norm. The output layer makes logits of h_k, as of h_0.
#pragma once

#include <ATen/ops/cat.h>
#include <fmt/core.h>

#include "core/models/layers/block.h"
#include "core/ops/linear.h"

namespace concord {

class MtpLayer {
 public:
  // |number| counts on from the model's layers. |context| has to outlive it and every backward.
  MtpLayer(const LayerContext& context, int64_t number)
      : context_(context),
        embedding_norm_(find_norm(context, number, "enorm")),
        hidden_norm_(find_norm(context, number, "hnorm")),
        projection_(context.find(fmt::format("model.layers.{}.eh_proj.weight", number))),
        block_(context, number),
        norm_(find_norm(context, number, "shared_head.norm")) {}

  at::Tensor forward(const at::Tensor& embedded_pbh, const at::Tensor& hidden_pbh, const SharedInputs& inputs) const {
    const at::Tensor both =
        at::cat({normed(embedded_pbh, embedding_norm_, context_), normed(hidden_pbh, hidden_norm_, context_)}, -1);
    const at::Tensor x_pbh = linear(both, projection_->used(), {}, projection_->grad_sink());
    return normed(block_.forward({x_pbh}, inputs), norm_, context_).normed;
  }

 private:
  const LayerContext& context_;
  const Parameter *embedding_norm_, *hidden_norm_, *projection_;
  Block block_;
  const Parameter* norm_;
};

}  // namespace concord
