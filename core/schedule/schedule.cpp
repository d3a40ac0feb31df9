#include "core/schedule/schedule.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/config_error.h"

namespace concord {
namespace {

bool any_action(const Schedule& schedule, bool (*wanted)(ActionKind)) {
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [&](const std::vector<Action>& actions) {
    return std::any_of(actions.begin(), actions.end(), [&](const Action& action) { return wanted(action.kind); });
  });
}

}  // namespace

std::string_view to_string(Placement placement) { return placement == Placement::v ? "v" : "loop"; }

std::vector<int> place_stages(Placement placement, int pp, int vpp) {
  if (placement == Placement::v && vpp != 2) {
    throw ConfigError(fmt::format(
        "placement v has exactly 2 chunks per rank, but virtual_pipeline_model_parallel_size is {}; set it to 2", vpp));
  }
  std::vector<int> rank_of_stage;
  for (int stage = 0; stage < pp * vpp; ++stage) {
    const bool going_back = placement == Placement::v && stage >= pp;
    rank_of_stage.push_back(going_back ? 2 * pp - 1 - stage : stage % pp);
  }
  return rank_of_stage;
}

std::vector<int> stages_of(const Schedule& schedule, int rank) {
  std::vector<int> stages;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    if (schedule.rank_of(stage) == rank) stages.push_back(stage);
  }
  return stages;
}

bool has_transfers(const Schedule& schedule) { return any_action(schedule, is_transfer); }

bool has_reductions(const Schedule& schedule) {
  return any_action(schedule, [](ActionKind kind) { return kind == ActionKind::reduce_gradients; });
}

bool is_forward_only(const Schedule& schedule) {
  return !any_action(schedule, gives_input_gradient) && !any_action(schedule, frees_activations);
}

std::optional<Action> producer_of(const Schedule& schedule, const Action& action) {
  if (action.kind == ActionKind::forward && action.stage > 0) {
    return Action{.stage = action.stage - 1, .microbatch = action.microbatch, .kind = ActionKind::forward};
  }
  if (gives_input_gradient(action.kind) && action.stage < schedule.stages() - 1) {
    return Action{.stage = action.stage + 1, .microbatch = action.microbatch, .kind = ActionKind::input_grad};
  }
  return std::nullopt;
}

std::vector<int64_t> peak_activations(const Schedule& schedule) {
  const bool forward_only = is_forward_only(schedule);
  std::vector<int64_t> peaks;
  for (const std::vector<Action>& actions : schedule.ranks) {
    int64_t held = 0;
    int64_t peak = 0;
    for (const Action& action : actions) {
      if (action.kind == ActionKind::forward) peak = std::max(peak, ++held);
      if (frees_activations(action.kind) || (forward_only && action.kind == ActionKind::forward)) --held;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace concord
