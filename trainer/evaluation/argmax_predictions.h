// The most probable token at each position, for compute_accuracy, compute_metrics and do_predict: an observer of the
// last stage's logits, which are vocabulary-parallel. Threads: training thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "core/models/model_chunk.h"

namespace concord {

// Returns the index of the largest logit of each token [s, b], the lowest of equal logits. |logits_sbv| are this rank's
// columns of the padded vocabulary, of which |vocabulary| are tokens. Every rank of |tp| calls it. Waits: as Work::wait
// does.
at::Tensor vocab_parallel_argmax(const at::Tensor& logits_sbv, int64_t vocabulary, ProcessGroup& tp);

// Observes |chunk| during its lifetime; does nothing unless |chunk| is the last.
class ArgmaxPredictions {
 public:
  ArgmaxPredictions(ModelChunk& chunk, int64_t vocabulary, ProcessGroup& tp);
  ~ArgmaxPredictions();
  ArgmaxPredictions(const ArgmaxPredictions&) = delete;
  ArgmaxPredictions& operator=(const ArgmaxPredictions&) = delete;

  // Returns the argmax token ids [s, b] of the last |batches| micro-batches, in order. Empty unless this is the last
  // stage. Throws ConfigError if the number of logits differs.
  std::vector<at::Tensor> take(size_t batches);

 private:
  ModelChunk& chunk_;
  int64_t vocabulary_;
  ProcessGroup& tp_;
  std::vector<at::Tensor> predicted_;  // argmax token ids [s, b] of the micro-batches so far
};

// Returns how many of this rank's tokens have the label as their prediction; an fp32 scalar, exact below 2^24.
at::Tensor count_right(const ModelChunk& chunk, std::span<const MicroBatch> batches,
                       std::span<const at::Tensor> predicted);

}  // namespace concord
