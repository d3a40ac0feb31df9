// The output layer of the last stage: logits and token losses from normed activations.
//
// Logits are by far the largest tensor of a step, so with loss_chunk_size only those of some tokens exist at a time
// (loss_chunks.h). If the gradient of the losses is certain and the layer is a plain product, losses and gradients are
// both computed in forward (linear_cross_entropy.h); otherwise logits are computed twice, in forward and in backward.
// Both also work under tensor parallelism, split by rows of the vocabulary.
//
// Threads: same as ModelChunk. Lives as long as the chunk: the backward of recomputed parts refers to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "core/models/adapters/layer_adapter.h"
#include "core/models/layers/layer_context.h"
#include "core/models/model_options.h"
#include "core/models/pass_options.h"
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

  // Returns the losses [b, s] of |labels_sb|, and the tokens' statistics if |pass| asks for them.
  PassOutput losses(const at::Tensor& normed_pbh, const at::Tensor& labels_sb, const PassOptions& pass) const;

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
