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

// Collects the argmax of the logits that its observer receives from the last stage.
class ArgmaxPredictions {
 public:
  // |vocabulary| and |tp| as in vocab_parallel_argmax().
  ArgmaxPredictions(int64_t vocabulary, ProcessGroup& tp) : vocabulary_(vocabulary), tp_(tp) {}
  ArgmaxPredictions(const ArgmaxPredictions&) = delete;
  ArgmaxPredictions& operator=(const ArgmaxPredictions&) = delete;

  // Returns the observer for the passes of the last stage. This object has to outlive it.
  Observer observer();
  // Returns the argmax token ids [s, b] of the last |batches| micro-batches of the last stage, in order. Throws
  // ConfigError if the observer did not receive the logits of each.
  std::vector<at::Tensor> take(size_t batches);

 private:
  int64_t vocabulary_;
  ProcessGroup& tp_;
  std::vector<at::Tensor> predicted_;  // argmax token ids [s, b] of the micro-batches so far
};

// Returns how many of this rank's tokens have the label as their prediction; an fp32 scalar, exact below 2^24.
at::Tensor count_right(const ModelChunk& chunk, std::span<const MicroBatch> batches,
                       std::span<const at::Tensor> predicted);

}  // namespace concord
