#include "core/schedule/step_schedule.h"

#include <fmt/core.h>

#include <string_view>

#include "core/base/config_error.h"
#include "core/schedule/check.h"
#include "core/schedule/passes.h"
#include "core/schedule/schedule_csv.h"

namespace concord {
namespace {

void check_size(const std::string& file, std::string_view what, int64_t there, std::string_view argument,
                int64_t asked) {
  if (there == asked) return;
  throw ConfigError(
      fmt::format("schedule {} has {} {}, but {} is {}; they must be equal", file, there, what, argument, asked));
}

Schedule loaded(const ScheduleRequest& request) {
  Schedule schedule = load_schedule_csv(request.kind);
  check_size(request.kind, "ranks", schedule.pp, "pipeline_model_parallel_size", request.pp);
  check_size(request.kind, "micro-batches", schedule.microbatches, "the number of micro-batches per step",
             request.microbatches);
  if (request.vpp != 0) {
    check_size(request.kind, "chunks per rank", schedule.vpp, "virtual_pipeline_model_parallel_size", request.vpp);
  }
  placement_of(schedule);
  return schedule;
}

}  // namespace

Schedule step_schedule(const ScheduleRequest& request) {
  Schedule schedule = complete_schedule(request.kind.ends_with(".csv") ? loaded(request) : make_schedule(request));
  check_schedule(schedule);
  return schedule;
}

Schedule evaluation_schedule(const Schedule& training, int64_t microbatches) {
  return step_schedule({.kind = "forward-only",
                        .pp = training.pp,
                        .microbatches = microbatches,
                        .vpp = training.vpp,
                        .placement = placement_of(training)});
}

Schedule single_schedule(Placement placement, int pp, int vpp, bool backward) {
  Schedule schedule{.kind = "single",
                    .pp = pp,
                    .vpp = vpp,
                    .microbatches = 1,
                    .rank_of_stage = place_stages(placement, pp, vpp),
                    .ranks = std::vector<std::vector<Action>>(static_cast<size_t>(pp)),
                    .activation_limit = std::vector<int64_t>(static_cast<size_t>(pp), vpp)};
  const auto add = [&](ActionKind kind, int stage) {
    schedule.ranks[static_cast<size_t>(schedule.rank_of(stage))].push_back({.stage = stage, .kind = kind});
  };
  for (int stage = 0; stage < schedule.stages(); ++stage) add(ActionKind::forward, stage);
  for (int stage = schedule.stages(); backward && stage-- > 0;) add(ActionKind::backward, stage);
  schedule = complete_schedule(schedule);
  check_schedule(schedule);
  return schedule;
}

Placement placement_of(const Schedule& schedule) {
  for (const Placement placement : {Placement::loop, Placement::v}) {
    if (placement == Placement::v && schedule.vpp != 2) continue;
    if (schedule.rank_of_stage == place_stages(placement, schedule.pp, schedule.vpp)) return placement;
  }
  throw ConfigError(
      fmt::format("schedule {}: its {} stages are placed on its {} ranks neither as a loop (stage s on rank s % {}) "
                  "nor, with two chunks per rank, as a v; a model must be placed in one of these ways",
                  schedule.kind, schedule.stages(), schedule.pp, schedule.pp));
}

}  // namespace concord
