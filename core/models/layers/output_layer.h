// The end of a model on its last stage: from normed activations to logits and to the losses of the tokens that follow.
//
// Logits are by far the largest tensor of a step, so with loss_chunk_size only those of some tokens exist at a time
// (loss_chunks.h). Where it is certain what the gradient of the losses is going to be, and the layer is a product and
// nothing else, all that is made of them is made in forward (core/ops/loss/linear_cross_entropy.h); elsewhere they are
// made twice, in forward and in backward. Both under tensor parallelism too, by the rows of the vocabulary.
//
// Threads: those of ModelChunk. Lives as long as the chunk: the backward of what is recomputed refers to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

#include "core/models/adapters/layer_adapter.h"
#include "core/models/layers/expected_grad.h"
#include "core/models/layers/layer_context.h"
#include "core/models/model_options.h"
#include "core/models/token_statistics.h"
#include "core/ops/loss/linear_cross_entropy.h"
#include "core/parallel/parameter.h"

namespace concord {

class LossChunks;

class OutputLayer {
 public:
  // |weight| is lm_head's or the embedding's. All of them outlive it.
  OutputLayer(const LayerContext& context, Parameter& weight, const ModelOptions& options);

  // [p, b, h] -> [s, b, v], this rank's columns.
  at::Tensor logits(const at::Tensor& normed_pbh) const { return logits(normed_pbh, *weight_); }

  struct Reports {
    std::optional<TokenStatistics>* statistics = nullptr;                 // gets what the model makes of each token
    const std::function<void(const at::Tensor& logits)>* seen = nullptr;  // is shown the logits of all of them
  };
  // [p, b, h], [s, b] -> [b, s].
  at::Tensor losses(const at::Tensor& normed_pbh, const at::Tensor& labels_sb, const ExpectedGrad& expected,
                    const Reports& reports) const;

 private:
  at::Tensor scaled(const at::Tensor& normed_pbh) const;
  at::Tensor logits(const at::Tensor& normed_pbh, const Parameter& weight) const;
  at::Tensor losses_of(const at::Tensor& logits_sbv, const at::Tensor& labels_sb, const CrossEntropyOptions& how) const;
  CrossEntropyOptions cross_entropy_options(double expected_grad) const;
  bool computes_chunks_once(const ExpectedGrad& expected) const;
  int64_t tokens_at_a_time(const ExpectedGrad& expected) const;  // 0: all
  at::Tensor of_all_ranks(const at::Tensor& x_pbh) const;
  at::Tensor losses_computed_once(const at::Tensor& x_sbh, const at::Tensor& labels_sb, const PiecewiseLoss& how) const;
  at::Tensor losses_computed_twice(const LossChunks& chunks, const CrossEntropyOptions& how,
                                   const LogitsReader& reader) const;

  const LayerContext* context_;
  const ModelOptions* options_;
  Parameter* weight_;
  LayerAdapter adapter_;
};

}  // namespace concord
