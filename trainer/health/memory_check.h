// Whether a run can fit, before anything is allocated. Threads: training thread only.
#pragma once

#include <string>

#include "core/mesh/parallel_context.h"
#include "trainer/plan.h"

namespace concord {

// All ranks, unless check_memory is false. Throws ConfigError on all ranks, with what is needed, what there is and the
// cheapest setting that fits, if a rank's certain bytes (trainer/planning/memory_plan.h: the state, and activations if
// rows have a known length) exceed the memory of its device, or those of the ranks of a machine the memory of the host.
// A run that passes may still run out of memory; one that fits is never refused. Waits: for all ranks.
void check_memory(const TrainingPlan& plan, ParallelContext& job);

// Returns "memory: about ...", what a device is expected to have in use and, if that is too much, the cheapest setting
// that fits. Empty on the host's platform, whose memory others use too, and with images, since the plan of memory does
// not have their tower.
std::string expected_memory(const TrainingPlan& plan, const ParallelContext& job);

}  // namespace concord
