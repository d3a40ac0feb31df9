#include "core/schedule/simulate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/base/config_error.h"

namespace concord {
namespace {

void check_cost(std::string_view name, double cost, bool may_be_free) {
  if (std::isfinite(cost) && (cost > 0 || (may_be_free && cost == 0))) return;
  throw ConfigError(fmt::format("{} is {}; must be a number {} 0", name, cost, may_be_free ? ">=" : ">"));
}

struct Span {
  double first = 0;  // start of the first computation
  double last = 0;   // end of the last
  double busy = 0;
};

Span span_of(const std::vector<Action>& actions, const std::vector<ActionTime>& times) {
  Span span;
  bool any = false;
  for (size_t i = 0; i < actions.size(); ++i) {
    if (!is_compute(actions[i].kind)) continue;
    if (!std::exchange(any, true)) span.first = times[i].start;
    span.last = times[i].end;
    span.busy += times[i].end - times[i].start;
  }
  return span;
}

// Returns the fraction of |whole| that is not |busy|; sums of many costs may differ in their last bits.
double idle_share(double busy, double whole) { return whole > 0 ? std::max(0.0, 1 - busy / whole) : 0; }

}  // namespace

Simulation simulate(const Schedule& schedule, const ScheduleCosts& costs) {
  check_cost("cost_f", costs.forward, false);
  check_cost("cost_b", costs.backward, false);
  check_cost("cost_w", costs.weight, false);
  check_cost("cost_comm", costs.comm, true);
  Walk result = walk(schedule, costs, /*blocking=*/false);
  if (!result.stuck.empty()) {
    throw ConfigError(fmt::format("schedule {} cannot be run: rank {} never finishes; check it first", schedule.kind,
                                  result.stuck.front().rank));
  }
  Simulation simulation;
  std::vector<Span> spans;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    spans.push_back(span_of(schedule.ranks[rank], result.times[rank]));
    for (const ActionTime& time : result.times[rank]) simulation.makespan = std::max(simulation.makespan, time.end);
  }
  for (const Span& span : spans) {
    simulation.bubble_ratio = std::max(simulation.bubble_ratio, idle_share(span.busy, simulation.makespan));
    simulation.device_idle_ratio =
        std::max(simulation.device_idle_ratio, idle_share(span.busy, span.last - span.first));
  }
  simulation.peak_activations = peak_activations(schedule);
  simulation.times = std::move(result.times);
  return simulation;
}

}  // namespace concord
