// State machine of spare processes: when one is started, and when it becomes a rank. Its rows are in job_rules().
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

// Returns the index of the spare to start next, the first that is absent. Spares start one at a time: ranks need the
// cores.
std::optional<size_t> spare_to_start(std::span<const SparePhase> spares);
// Returns the index of the spare that becomes a rank next: one that is ready, otherwise one that is loading, which is
// ready sooner than a new process; nullopt if there is neither.
std::optional<size_t> spare_to_take(std::span<const SparePhase> spares);

}  // namespace concord
