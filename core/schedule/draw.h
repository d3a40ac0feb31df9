// Drawings of schedules, for a terminal and as SVG. Pure.
#pragma once

#include <string>
#include <vector>

#include "core/schedule/simulate.h"

namespace concord {

// Returns one line per rank, with time to the right. A cell is as long as the shortest computation; '.' marks a waiting
// rank. Wrapped into blocks of at most |width| characters (0: not wrapped). A drawing of more than kMaxCells cells is
// replaced by a line that states this.
std::string draw_grid(const Schedule& schedule, const Simulation& simulation, size_t width);
inline constexpr int64_t kMaxCells = 100'000;

// Returns one SVG with a panel per schedule, all on the same time scale: colours by kind, lighter for later chunks,
// micro-batches as numbers. Throws ConfigError for more than kMaxDrawn computations.
struct Panel {
  const Schedule* schedule;
  const Simulation* simulation;
};
std::string draw_svg(const std::vector<Panel>& panels);
inline constexpr int64_t kMaxDrawn = 100'000;

}  // namespace concord
