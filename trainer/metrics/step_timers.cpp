#include "trainer/metrics/step_timers.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace concord {

const char* to_string(StepPart part) {
  switch (part) {
    case StepPart::forward_backward: return "forward_backward";
    case StepPart::reduce: return "reduce";
    case StepPart::optimizer: return "optimizer";
    case StepPart::data: return "data";
    case StepPart::save: return "save";
    case StepPart::forward: return "forward";
    case StepPart::backward: return "backward";
  }
  return "";
}

StepTimers::StepTimers(ParallelContext& job, int64_t level, TimingLogOption option)
    : job_(job), level_(level), option_(option) {}

size_t StepTimers::parts() const { return level_ < 1 ? 0 : level_ < 2 ? kStepParts - 2 : kStepParts; }

void StepTimers::settle(int64_t level) {
  if (level_ >= level) job_.device().synchronize();
}

void StepTimers::watch(const Action& action, bool begins) {
  if (level_ < 2 && !listener_) return;
  settle(2);
  const StepPart part = action.kind == ActionKind::forward ? StepPart::forward : StepPart::backward;
  const auto name = [&] {
    return fmt::format("{} {}", part == StepPart::forward ? "forward" : "backward", to_string(action));
  };
  const Time now = std::chrono::steady_clock::now();
  if (begins) {
    if (begun_) begun_(name());
    action_begin_ = now;
    return;
  }
  seconds_[static_cast<size_t>(part)] += std::chrono::duration<double>(now - action_begin_).count();
  if (listener_) listener_(name(), action_begin_, now);
}

StepTimers::Span::Span(StepTimers& timers, StepPart part) : timers_(timers), part_(part) {
  timers_.settle(1);
  if (timers_.begun_) timers_.begun_(to_string(part));
  begin_ = std::chrono::steady_clock::now();
}

StepTimers::Span::~Span() {
  timers_.settle(1);
  const Time now = std::chrono::steady_clock::now();
  timers_.seconds_[static_cast<size_t>(part_)] += std::chrono::duration<double>(now - begin_).count();
  if (timers_.listener_) timers_.listener_(to_string(part_), begin_, now);
}

NamedValues StepTimers::take() {
  NamedValues values;
  const auto steps = static_cast<double>(std::max<int64_t>(1, std::exchange(steps_, 0)));
  const std::array<double, kStepParts> own = std::exchange(seconds_, {});
  if (level_ == 0) return values;
  at::Tensor mine = at::empty({static_cast<int64_t>(kStepParts)}, at::kFloat);
  for (size_t i = 0; i < kStepParts; ++i) mine.data_ptr<float>()[i] = static_cast<float>(own[i] / steps);
  mine = mine.to(job_.torch_device());
  at::Tensor all = at::empty({job_.world() * static_cast<int64_t>(kStepParts)}, mine.options());
  job_.world_group().all_gather(all, mine).wait();
  all = all.to(at::kCPU);
  for (size_t i = 0; i < parts(); ++i) {
    const std::string name = fmt::format("time_{}", to_string(static_cast<StepPart>(i)));
    double least = own[i] / steps, most = 0;
    for (int64_t rank = 0; rank < job_.world(); ++rank) {
      const double seconds = all.data_ptr<float>()[static_cast<size_t>(rank) * kStepParts + i];
      least = std::min(least, seconds);
      most = std::max(most, seconds);
      if (option_ == TimingLogOption::all) values.emplace_back(fmt::format("{}_rank_{}", name, rank), seconds);
    }
    if (option_ == TimingLogOption::minmax) values.emplace_back(name + "_min", least);
    if (option_ != TimingLogOption::all) values.emplace_back(name + "_max", most);
  }
  return values;
}

}  // namespace concord
