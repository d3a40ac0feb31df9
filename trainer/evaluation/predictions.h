// What a model says of the samples of an evaluation, token by token: for compute_metrics and do_predict. Every rank of
// the last stage has all of it, whichever rank computed it. Threads: the one that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "core/models/model_chunk.h"
#include "trainer/report/history.h"

namespace concord {

// A sample of the data; of its tokens those that count, in their order.
struct PredictedSample {
  int64_t index = 0;                 // in the data, from 0
  std::vector<int64_t> labels;       // the tokens that were to follow
  std::vector<int64_t> predictions;  // those that the model ranked first
  std::vector<double> log_probs;     // of the labels

  double loss() const;  // mean of -log_probs; 0 without tokens
};

// HF's compute_metrics: the samples of one set -> names and numbers, which become eval_NAME or eval_SET_NAME. Called on
// every rank of the last stage with the same samples, sorted by index, and expected to return the same there.
using ComputeMetrics = std::function<NamedValues(const std::vector<PredictedSample>& samples)>;

class Predictions {
 public:
  explicit Predictions(ParallelContext& job) : job_(job) {}

  // A run over |batches| of |chunk|, whose first row is row |first_row| of the data, dealt to data-parallel ranks as
  // the batcher does; rows from |samples| on are padding. |losses| and |predicted| of each micro-batch as ModelStage
  // and ArgmaxPredictions have them. Every rank of the last stage calls it. Waits: for the others.
  void add(const ModelChunk& chunk, std::span<const MicroBatch> batches, std::span<const at::Tensor> losses,
           std::span<const at::Tensor> predicted, int64_t first_row, int64_t samples);

  // All samples 0 to |samples| - 1; those without counted tokens are empty.
  std::vector<PredictedSample> take(int64_t samples);

 private:
  struct Token {
    double index, position, label, prediction, log_prob;
  };

  ParallelContext& job_;
  std::vector<Token> tokens_;
};

// One JSON object per line: index, loss, labels, predictions, log_probs. Replaces |file|.
void write_predictions(const std::filesystem::path& file, const std::vector<PredictedSample>& samples);

// The values of the last stage on all ranks; |values| are ignored elsewhere. Every rank calls it. Waits: for all ranks.
NamedValues of_last_stage(ParallelContext& job, const NamedValues& values);

}  // namespace concord
