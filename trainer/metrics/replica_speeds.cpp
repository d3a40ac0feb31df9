#include "trainer/metrics/replica_speeds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/base/config_error.h"
#include "core/mesh/agreement.h"
#include "platform/loader/host.h"
#include "trainer/arguments/relations.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/data/batch_division.h"
#include "trainer/run_context.h"

namespace concord {

std::vector<double> relative_speeds(const std::vector<int64_t>& own_times, const std::vector<int64_t>& replica_of,
                                    int64_t replicas) {
  std::vector<double> times(static_cast<size_t>(replicas), 1);  // not 0, by which is divided
  for (size_t rank = 0; rank < own_times.size(); ++rank) {
    double& time = times[static_cast<size_t>(replica_of[rank])];
    time = std::max(time, static_cast<double>(own_times[rank]));
  }
  const double slowest = *std::ranges::max_element(times);
  for (double& time : times) time = slowest / time;
  return times;
}

ReplicaSpeeds::ReplicaSpeeds(RunContext& run)
    : LoopPart(run),
      is_automatic_(run.plan.arguments.steps.heterogeneous_split == kAutomaticSplit && run.job.layout().dp() > 1),
      speeds_(run.plan.data.speeds) {}

bool ReplicaSpeeds::advance() {
  if (!is_automatic_ || !speeds_.empty()) return false;
  ++steps_;
  if (steps_ == kWarmUpSteps) begun_at_ = run_.clock.own_seconds();
  if (steps_ == kWarmUpSteps + kTimedSteps) divide(measured(run_.clock.own_seconds() - *begun_at_));
  return false;
}

std::vector<double> ReplicaSpeeds::measured(double own_seconds) const {
  constexpr double kNanoseconds = 1e9;
  std::vector<int64_t> replica_of;
  for (int64_t rank = 0; rank < run_.job.world(); ++rank) replica_of.push_back(run_.job.layout().coordinates(rank).dp);
  const auto own = static_cast<int64_t>(std::llround(own_seconds * kNanoseconds));
  return relative_speeds(all_gather_scalar(run_.job, own), replica_of, run_.job.layout().dp());
}

// All ranks have the same speeds, and so the same result.
void ReplicaSpeeds::divide(std::vector<double> speeds) {
  DataLoader& data = *run_.plan.train_data;
  const int64_t all = data.global_batch_size() / run_.plan.data.micro_batch_size;
  const std::vector<int64_t> counts = divide_by_speed(all, speeds, run_.plan.data.micro_batch_unit);
  data.set_speeds(speeds);
  speeds_ = std::move(speeds);
  if (run_.job.rank() != 0) return;
  loader::log(
      CONCORD_LOG_INFO, "train",
      fmt::format("heterogeneous_split: from step {} the {} micro-batches of a step are divided into {} (relative "
                  "speeds of the replicas: {:.3g})",
                  run_.state.global_step + 1, all, fmt::join(counts, ", "), fmt::join(speeds_, ", ")));
}

void ReplicaSpeeds::save(TrainingState* state) {
  if (is_automatic_) state->replica_speeds = speeds_;
}

void ReplicaSpeeds::restore(const TrainingState& state) {
  if (!is_automatic_ || std::ssize(state.replica_speeds) != run_.job.layout().dp()) return;
  run_.plan.train_data->set_speeds(state.replica_speeds);
  speeds_ = state.replica_speeds;
}

}  // namespace concord
