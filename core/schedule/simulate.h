// What a schedule costs: the length of the step, the share of it in which devices wait, the activations they hold.
#pragma once

#include "core/schedule/walk.h"

namespace concord {

struct Simulation {
  double makespan = 0;                         // from the first start to the last end
  double bubble_ratio = 0;                     // 1 - computing time / makespan; the largest of the ranks
  double device_idle_ratio = 0;                // the same between a rank's own first and last computation
  std::vector<int64_t> peak_activations;       // of each rank, each of one micro-batch through one chunk
  std::vector<std::vector<ActionTime>> times;  // as schedule.ranks
};

// Runs a schedule that the checker has passed on the machine of walk.h, with transfers in parallel with the
// computations. Throws ConfigError for costs that are not positive numbers (transfers may be free), and if a rank
// cannot continue.
Simulation simulate(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace concord
