// Spare processes as data: when one is started, when it becomes a rank. The rows are a table of job_rules().
//
// A spare has loaded everything that a rank loads and waits to be told which one it is. It is not part of an attempt:
// after a failure the ranks of the next attempt are spares, as far as there are any, and new processes.
//
// Pure functions of plain values.
#pragma once

#include <optional>
#include <span>

#include "core/launch/job/job_state.h"

namespace concord {

struct SpareStep {
  SparePhase phase{};
  SpareOrder order{};
};
SpareStep next_step(const JobRules& rules, SparePhase phase, SpareEvent event);

// The place of the spare that is started next: the first that is absent. One at a time: the ranks need the cores.
std::optional<size_t> spare_to_start(std::span<const SparePhase> spares);
// The one that becomes a rank next: one that is ready, or else one that is loading, which is sooner there than a new
// process. Nothing where there is neither.
std::optional<size_t> spare_to_take(std::span<const SparePhase> spares);

}  // namespace concord
