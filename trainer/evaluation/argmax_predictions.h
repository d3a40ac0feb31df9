// Which token a model ranks first, for compute_accuracy, compute_metrics and do_predict: an observer of the last
// stage's logits, whose columns are split over the tensor-parallel ranks. Threads: the one that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "core/models/model_chunk.h"

namespace concord {

// The column of the largest logit of each token [s, b]; |logits_sbv| are this rank's columns of the padded vocabulary,
// of which |vocabulary| are tokens. Of equal ones the first. Every rank of |tp| calls it. Waits: as Work::wait does.
at::Tensor vocab_parallel_argmax(const at::Tensor& logits_sbv, int64_t vocabulary, ProcessGroup& tp);

// Observes |chunk| as long as it exists; on ranks whose chunk is not the last it does nothing.
class ArgmaxPredictions {
 public:
  ArgmaxPredictions(ModelChunk& chunk, int64_t vocabulary, ProcessGroup& tp);
  ~ArgmaxPredictions();
  ArgmaxPredictions(const ArgmaxPredictions&) = delete;
  ArgmaxPredictions& operator=(const ArgmaxPredictions&) = delete;

  // After a run over so many micro-batches, in their order: the tokens ranked first [s, b] of each. None where the
  // chunk is not the last. Throws ConfigError where there were not as many logits.
  std::vector<at::Tensor> take(size_t batches);

 private:
  ModelChunk& chunk_;
  int64_t vocabulary_;
  ProcessGroup& tp_;
  std::vector<at::Tensor> predicted_;  // of each micro-batch so far
};

// How many of the labels of this rank's tokens were ranked first; an fp32 scalar, exact below 2^24.
at::Tensor count_right(const ModelChunk& chunk, std::span<const MicroBatch> batches,
                       std::span<const at::Tensor> predicted);

}  // namespace concord
