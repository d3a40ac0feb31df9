// Predictions of a model for the samples of an evaluation, token by token, for compute_metrics and do_predict. Every
// rank of the last stage gets all of them. Threads: training thread only.
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

// The predictions for the tokens of a sample that the loss covers, in order.
struct PredictedSample {
  int64_t index = 0;                 // index of the sample in the data, from 0
  std::vector<int64_t> labels;       // next tokens in the data
  std::vector<int64_t> predictions;  // most probable next tokens
  std::vector<double> log_probs;     // log-probabilities of the labels

  double loss() const;  // mean of -log_probs; 0 without tokens
};

// HF's compute_metrics: the samples of one set -> names and numbers, which become eval_NAME or eval_SET_NAME. Called on
// every rank of the last stage with the same samples, sorted by index, and expected to return the same there.
using ComputeMetrics = std::function<NamedValues(const std::vector<PredictedSample>& samples)>;

class Predictions {
 public:
  explicit Predictions(ParallelContext& job) : job_(job) {}

  // Adds a run over |batches| of |chunk|, whose first row is row |first_row| of the data; the batcher distributes rows
  // over data-parallel ranks. Rows >= |samples| are padding. |losses| and |predicted| are those of ArgmaxPredictions
  // have them. Every rank of the last stage calls it. Waits: for the others.
  void add(const ModelChunk& chunk, std::span<const MicroBatch> batches, std::span<const at::Tensor> losses,
           std::span<const at::Tensor> predicted, int64_t first_row, int64_t samples);

  // Returns samples 0 to |samples| - 1; those without counted tokens are empty.
  std::vector<PredictedSample> take(int64_t samples);

 private:
  struct Token {
    double index, position, label, prediction, log_prob;
  };

  ParallelContext& job_;
  std::vector<Token> tokens_;
};

// Writes one JSON object per line: index, loss, labels, predictions, log_probs. Replaces |file|.
void write_predictions(const std::filesystem::path& file, const std::vector<PredictedSample>& samples);

// Returns the values of the last stage on all ranks; |values| are ignored elsewhere. Every rank calls it. Waits: for
// all ranks.
NamedValues of_last_stage(ParallelContext& job, const NamedValues& values);

}  // namespace concord
