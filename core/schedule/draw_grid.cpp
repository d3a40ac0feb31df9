#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/schedule/draw.h"

namespace concord {
namespace {

constexpr std::string_view kLabel = "rank ";

// If a rank has only one stage, the micro-batch alone is unambiguous.
std::string cell_text(const Schedule& schedule, const Action& action) {
  const std::string text = to_string(action);
  return schedule.vpp == 1 ? text.substr(std::to_string(action.stage).size()) : text;
}

double shortest_computation(const Schedule& schedule, const Simulation& simulation) {
  double shortest = std::numeric_limits<double>::infinity();
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const ActionTime& time = simulation.times[rank][i];
      if (is_compute(schedule.ranks[rank][i].kind)) shortest = std::min(shortest, time.end - time.start);
    }
  }
  return shortest;
}

// Rounding keeps cells separate: starts differ by at least one cell.
std::vector<std::string> row_cells(const Schedule& schedule, const Simulation& simulation, size_t rank, double unit,
                                   size_t columns) {
  std::vector<std::string> cells(columns, ".");
  for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
    const Action& action = schedule.ranks[rank][i];
    if (!is_compute(action.kind)) continue;
    const auto first = static_cast<size_t>(std::lround(simulation.times[rank][i].start / unit));
    const auto end = std::min(static_cast<size_t>(std::lround(simulation.times[rank][i].end / unit)), columns);
    for (size_t column = first; column < end; ++column)
      cells[column] = column == first ? cell_text(schedule, action) : "=";
  }
  return cells;
}

size_t cell_width(const std::vector<std::vector<std::string>>& rows) {
  size_t width = 0;
  for (const std::vector<std::string>& row : rows) {
    for (const std::string& cell : row) width = std::max(width, cell.size());
  }
  return width + 1;
}

}  // namespace

std::string draw_grid(const Schedule& schedule, const Simulation& simulation, size_t width) {
  const double unit = shortest_computation(schedule, simulation);
  const double cells = simulation.makespan / unit * schedule.pp;
  if (!(cells <= static_cast<double>(kMaxCells))) {
    return fmt::format(
        "(the grid would have {:.0f} cells, more than {}; use --save_csv, --svg or --json for the full schedule)\n",
        cells, kMaxCells);
  }
  const auto columns = static_cast<size_t>(std::lround(simulation.makespan / unit));
  std::vector<std::vector<std::string>> rows;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    rows.push_back(row_cells(schedule, simulation, rank, unit, columns));
  const size_t cell = cell_width(rows);
  const size_t number = std::to_string(schedule.pp - 1).size();
  const size_t label = kLabel.size() + number + 2;
  const size_t block = width == 0 ? columns : std::max<size_t>(1, (std::max(width, label) - label) / cell);
  std::string text;
  for (size_t begin = 0; begin < columns; begin += block) {
    const size_t end = std::min(begin + block, columns);
    if (block < columns)
      text += fmt::format("{}from time {:g}\n", begin == 0 ? "" : "\n", static_cast<double>(begin) * unit);
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      text += fmt::format("{}{:>{}} |", kLabel, rank, number);
      for (size_t column = begin; column < end; ++column) text += fmt::format("{:>{}}", rows[rank][column], cell);
      text += "\n";
    }
  }
  return text;
}

}  // namespace concord
