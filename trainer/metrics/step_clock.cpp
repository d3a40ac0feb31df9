#include "trainer/metrics/step_clock.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace concord {

StepClock::StepClock(ParallelContext& job)
    : job_(job), waits_on_host_(job.platform().capability(CONCORD_CAP_STREAM_HOST_IS_CURRENT) != 0) {
  restart();
}

void StepClock::restart() {
  charge();
  times_ = {};
  not_charged_ = {};
  warm_up_left_ = kWarmUpSteps;
  first_step_ = last_step_ = 0;
}

StepClock::Activity StepClock::enter(Activity activity) {
  charge();
  return std::exchange(activity_, activity);
}

// The time since the last call was spent on |activity_|.
void StepClock::charge() {
  using Seconds = std::chrono::duration<double>;
  const Clock::time_point now = Clock::now();
  const CommunicationTime::Duration elapsed = now - std::exchange(since_, now);
  const CommunicationTime& communication = job_.communication_time();
  const CommunicationTime::Duration host = communication.on_host(), device = communication.on_device();
  CommunicationTime::Duration waited = host - std::exchange(host_, host);
  // Calls of the steps before may be seen to have ended only after this, so what is not charged yet is kept.
  const CommunicationTime::Duration ended = device - std::exchange(device_, device);
  if (activity_ == Activity::other) return;
  not_charged_ += ended;
  if (!waits_on_host_ && activity_ == Activity::compute) {
    waited = std::min(not_charged_, elapsed);
    not_charged_ -= waited;
  }
  const double own = Seconds(std::max(elapsed - waited, CommunicationTime::Duration(0))).count();
  times_.communication += Seconds(waited).count();
  if (activity_ != Activity::saving) own_seconds_ += own;
  switch (activity_) {
    case Activity::compute: times_.compute += own; break;
    case Activity::data: times_.data += own; break;
    case Activity::saving: times_.saving += own; break;
    case Activity::other: break;
  }
}

void StepClock::end_step(int64_t number) {
  if (warm_up_left_ > 0) {
    --warm_up_left_;
    charge();
    times_ = {};
    return;
  }
  if (first_step_ == 0) first_step_ = number;
  last_step_ = number;
}

double StepClock::own_seconds() {
  charge();
  return own_seconds_;
}

std::optional<RankTable> StepClock::take() {
  charge();
  if (first_step_ == 0) return std::nullopt;
  RankTable table{
      .first_step = std::exchange(first_step_, 0), .last_step = last_step_, .ranks = gathered(), .stages = {}};
  times_ = {};
  for (int64_t rank = 0; rank < job_.world(); ++rank) table.stages.push_back(job_.layout().coordinates(rank).pp);
  return table;
}

std::vector<RankTimes> StepClock::gathered() const {
  if (job_.world() == 1) return {times_};
  const auto options = at::TensorOptions(job_.torch_device()).dtype(at::kDouble);
  const at::Tensor own =
      at::tensor({times_.compute, times_.data, times_.saving, times_.communication}, at::TensorOptions(at::kDouble))
          .to(job_.torch_device());
  const at::Tensor all = at::empty({job_.world(), own.numel()}, options);
  job_.world_group().all_gather(all, own).wait();
  const at::Tensor host = all.to(at::kCPU);
  std::vector<RankTimes> ranks;
  for (const double* row = host.const_data_ptr<double>(); std::ssize(ranks) < job_.world(); row += own.numel()) {
    ranks.push_back({.compute = row[0], .data = row[1], .saving = row[2], .communication = row[3]});
  }
  return ranks;
}

}  // namespace concord
