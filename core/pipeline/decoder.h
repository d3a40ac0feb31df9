// Generation over the stages of a pipeline: tokens in, logits of the next token out. The keys and values of earlier
// tokens stay on the ranks of their layers.
//
// Example, given VirtualModels& models, ParallelContext& job, const at::Tensor& ids, const at::Tensor& counts:
//   Decoder decoder(models, job, ids.size(0), 100);
//   const at::Tensor logits = decoder.step({ids, counts});  // then one token per row, repeatedly
//
// With a single rank whose device supports it, a step of one token is captured in a graph once and replayed
// (core/torch/graphed_callable.h). The weights may change between decoders, not during the life of one.
//
// Tensor-parallel ranks share the heads; context- and data-parallel ranks all compute the same. Stages run one after
// another: the decoder is for looking at a model, not for serving it. Threads: one at a time.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "core/models/auto_model.h"
#include "core/models/layers/kv_cache.h"
#include "core/pipeline/executor.h"
#include "core/torch/graphed_callable.h"

namespace concord {

class Decoder {
 public:
  // |rows| sequences of up to |capacity| tokens. |models| and |job| outlive it. Throws ConfigError as
  // ModelChunk::make_cache does. Every rank makes it. Waits: for the other ranks of the pipeline.
  Decoder(VirtualModels& models, ParallelContext& job, int64_t rows, int64_t capacity);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Returns the logits [B, V of this tp rank, padding included] after the last token of each row, on all ranks of the
  // last stage, in the type of the model; undefined elsewhere. The next step may overwrite them. |tokens| are equal on
  // all ranks. Waits: as Executor::run.
  at::Tensor step(const NewTokens& tokens);

  // Whether the last step was a replay.
  bool is_replayed() const { return one_token_ && one_token_->is_recorded(); }

 private:
  class DecodeStage;

  void make_replayable(c10::Device device, int64_t rows);

  std::deque<DecodeStage> stages_;
  std::unique_ptr<Executor> executor_;
  // Inputs, graph and output of the steps after the first, if they can be replayed.
  NewTokens tokens_;
  at::Tensor logits_;
  std::optional<GraphedCallable> one_token_;
  bool has_begun_ = false;
};

}  // namespace concord
