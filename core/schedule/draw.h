// Pictures of schedules, for a terminal and as SVG. Pure.
#pragma once

#include <string>
#include <vector>

#include "core/schedule/simulate.h"

namespace concord {

// A line for each rank, time to the right; a cell is as long as the shortest computation, and '.' is a rank that
// waits. Broken into blocks of at most |width| characters (0: not broken). Pictures of more than kMaxCells are left
// out with a line that says so.
std::string draw_grid(const Schedule& schedule, const Simulation& simulation, size_t width);
inline constexpr int64_t kMaxCells = 100'000;

// One picture, a panel for each schedule, all on one scale of time: colours by kind, lighter for later chunks,
// micro-batches as numbers. Throws ConfigError for more than kMaxDrawn computations.
struct Panel {
  const Schedule* schedule;
  const Simulation* simulation;
};
std::string draw_svg(const std::vector<Panel>& panels);
inline constexpr int64_t kMaxDrawn = 100'000;

}  // namespace concord
