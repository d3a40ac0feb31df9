// The cost of a schedule: duration of the step, fraction of it in which devices wait, activations that they hold.
#pragma once

#include "core/schedule/walk.h"

namespace concord {

struct Simulation {
  double makespan = 0;                         // from the first start to the last end
  double bubble_ratio = 0;                     // 1 - computing time / makespan; maximum over the ranks
  double device_idle_ratio = 0;                // like bubble_ratio, between a rank's own first and last computation
  std::vector<int64_t> peak_activations;       // per rank, in units of one micro-batch through one chunk
  std::vector<std::vector<ActionTime>> times;  // indexed like schedule.ranks
};

// Simulates a checked schedule on the machine of walk.h, with transfers in parallel with computations. Throws
// ConfigError for costs that are not positive (transfers may be free), and if a rank cannot continue.
Simulation simulate(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace concord
