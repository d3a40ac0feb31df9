// Losses between two log lines. They stay on the device until they are needed or there are a thousand, and are then
// reduced together: one all-reduce and one wait for all of these steps. Threads: training thread only.
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
  // |filter|: excludes losses that are not finite from means (logging_nan_inf_filter).
  LossLog(ParallelContext& job, bool filter) : job_(job), filter_(filter) {}

  // Adds a step. |part| is this rank's part of its loss, a scalar, identical on all tp ranks and 0 except on the last
  // stage. The loss is the sum over all ranks divided by |counted|, or the sum if |counted| is 0. Every rank calls it.
  // Waits: for all ranks at every thousandth step since the last mean.
  void add(const at::Tensor& part, int64_t counted);

  // Returns the mean over the steps since the last call; NaN if there are none. Every rank calls it. Waits: for all
  // ranks.
  double take_mean();
  double mean_so_far() const;  // mean over all steps whose losses were taken
  // Returns the loss of the last step that was added since the last mean; NaN if there is none. Changes nothing. Every
  // rank calls it. Waits: for all ranks.
  double last() const;

  // Writes the losses to the state of a checkpoint, and restores them. Every rank calls save. Waits: for all ranks.
  void save(TrainingState* state);
  void restore(const TrainingState& state);

 private:
  void collect();

  ParallelContext& job_;
  bool filter_;
  std::vector<at::Tensor> parts_;  // losses on the device, one per step
  std::vector<int64_t> counted_;
  std::vector<double> losses_;  // losses of the steps before |parts_|, since the last log line
  double sum_ = 0;
  int64_t steps_ = 0;
};

// The sum of losses over an evaluation; they stay on the device like those of LossLog.
class LossTotals {
 public:
  explicit LossTotals(ParallelContext& job) : job_(job) {}
  // Adds a batch. |counted| is 0 except on the last stage.
  void add(const at::Tensor& part, int64_t counted);
  // Returns the mean and the number of tokens that it covers. Every rank calls it, after the same number of add()
  // calls. Waits: for all ranks.
  std::pair<double, int64_t> mean_and_count();

 private:
  ParallelContext& job_;
  std::vector<at::Tensor> parts_;
  int64_t counted_ = 0;
};

// Returns the mean of |losses|, without those that are not finite if |filter|; NaN if none is left. Pure.
double mean_loss(const std::vector<double>& losses, bool filter);

}  // namespace concord
