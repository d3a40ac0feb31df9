// Losses between two log lines. They stay on their devices until they are needed, or there are a thousand:
// then one reduction for all of these steps, and one wait for the device. Threads: the one that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "core/mesh/parallel_context.h"

namespace concord {

struct TrainingState;

class LossLog {
 public:
  // |filter|: steps whose loss is not finite do not count in means (logging_nan_inf_filter).
  LossLog(ParallelContext& job, bool filter) : job_(job), filter_(filter) {}

  // |part| is this rank's part of the step's loss, a scalar, the same on all tp ranks and 0 except on the last stage;
  // |counted| what the sum over all ranks is divided by (0: it is the loss already). Every rank calls it. Waits: for
  // all ranks at every thousandth step since the last mean.
  void add(const at::Tensor& part, int64_t counted);

  // The mean over the steps since the last call; NaN if there are none. Every rank calls it. Waits: for all ranks.
  double take_mean();
  double mean_so_far() const;  // of all steps whose losses were taken

  // Into the state of a checkpoint, and out of it. Every rank calls save. Waits: for all ranks.
  void save(TrainingState* state);
  void restore(const TrainingState& state);

 private:
  void collect();

  ParallelContext& job_;
  bool filter_;
  std::vector<at::Tensor> parts_;  // of steps that are still on the devices
  std::vector<int64_t> counted_;
  std::vector<double> losses_;  // of the steps before them, since the last log line
  double sum_ = 0;
  int64_t steps_ = 0;
};

// Sums over an evaluation, in the same way.
class LossTotals {
 public:
  explicit LossTotals(ParallelContext& job) : job_(job) {}
  // |counted| is 0 except on the last stage.
  void add(const at::Tensor& part, int64_t counted);
  // Every rank calls it, after as many additions. Waits: for all ranks.
  std::pair<double, int64_t> mean_and_count();

 private:
  ParallelContext& job_;
  std::vector<at::Tensor> parts_;
  int64_t counted_ = 0;
};

// The mean of |losses|, without those that are not finite if |filter|; NaN if none is left. Pure.
double mean_loss(const std::vector<double>& losses, bool filter);

}  // namespace concord
