#include "trainer/metrics/loss_log.h"

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "trainer/checkpoint/training_state.h"

namespace concord {

namespace {

constexpr size_t kMaxOnDevice = 1000;  // a run that never logs must not accumulate them without bound

// Partial scalars on every rank -> their sums over the job. Tensor-parallel ranks hold the same values, counted once.
std::vector<double> sums_over_job(ParallelContext& job, const std::vector<at::Tensor>& parts) {
  std::vector<at::Tensor> there;
  for (const at::Tensor& part : parts) there.push_back(part.to(job.torch_device()));
  at::Tensor sums = at::stack(there);
  if (job.coordinates().tp != 0) sums = at::zeros_like(sums);
  job.world_group().all_reduce(sums).wait();
  sums = sums.to(at::kCPU);
  const float* values = sums.data_ptr<float>();
  return {values, values + parts.size()};
}

double loss_of(double sum, int64_t counted) { return counted > 0 ? sum / static_cast<double>(counted) : sum; }

}  // namespace

void LossLog::add(const at::Tensor& part, int64_t counted) {
  parts_.push_back(part);
  counted_.push_back(counted);
  if (parts_.size() >= kMaxOnDevice) collect();
}

void LossLog::collect() {
  if (parts_.empty()) return;
  const std::vector<double> sums = sums_over_job(job_, parts_);
  for (size_t i = 0; i < sums.size(); ++i) {
    losses_.push_back(loss_of(sums[i], counted_[i]));
  }
  parts_.clear();
  counted_.clear();
}

double LossLog::take_mean() {
  collect();
  for (const double loss : losses_) {
    if (filter_ && !std::isfinite(loss)) continue;
    sum_ += loss;
    ++steps_;
  }
  const double mean = mean_loss(losses_, filter_);
  losses_.clear();
  return mean;
}

double LossLog::last() const {
  if (!parts_.empty()) return loss_of(sums_over_job(job_, {parts_.back()})[0], counted_.back());
  return losses_.empty() ? std::numeric_limits<double>::quiet_NaN() : losses_.back();
}

void LossLog::save(TrainingState* state) {
  collect();
  state->loss_sum = sum_;
  state->loss_steps = steps_;
  state->unlogged_losses = losses_;
}

void LossLog::restore(const TrainingState& state) {
  sum_ = state.loss_sum;
  steps_ = state.loss_steps;
  losses_ = state.unlogged_losses;
}

double LossLog::mean_so_far() const {
  return steps_ > 0 ? sum_ / static_cast<double>(steps_) : std::numeric_limits<double>::quiet_NaN();
}

void LossTotals::add(const at::Tensor& part, int64_t counted) {
  parts_.push_back(part);
  counted_ += counted;
}

std::pair<double, int64_t> LossTotals::mean_and_count() {
  const int64_t own = job_.coordinates().tp == 0 ? counted_ : 0;
  at::Tensor count = at::full({1}, own, at::TensorOptions().dtype(at::kLong).device(job_.torch_device()));
  job_.world_group().all_reduce(count).wait();
  const int64_t counted = count.item<int64_t>();
  double sum = 0;
  if (!parts_.empty()) {
    for (const double part : sums_over_job(job_, parts_)) sum += part;
  }
  return {sum / static_cast<double>(counted), counted};
}

double mean_loss(const std::vector<double>& losses, bool filter) {
  double sum = 0;
  int64_t counted = 0;
  for (const double loss : losses) {
    if (filter && !std::isfinite(loss)) continue;
    sum += loss;
    ++counted;
  }
  return counted > 0 ? sum / static_cast<double>(counted) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace concord
