#include "trainer/report/rank_heat_map.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace concord {
namespace {

// Merges tables to at most about kMaxHeatColumns; only tables of the same ranks can be merged.
std::vector<RankTable> heat_columns(const std::vector<RankTable>& tables) {
  const size_t stretch = (tables.size() + kMaxHeatColumns - 1) / kMaxHeatColumns;
  std::vector<RankTable> columns;
  size_t in_last = stretch;
  for (const RankTable& table : tables) {
    if (in_last < stretch && columns.back().stages == table.stages) {
      columns.back() = merged(columns.back(), table);
      ++in_last;
    } else {
      columns.push_back(table);
      in_last = 1;
    }
  }
  return columns;
}

// Returns the ranks to draw, in order.
std::vector<int64_t> heat_rows(const std::vector<std::vector<double>>& relative, size_t world) {
  std::vector<double> slowest(world, 0);
  for (const std::vector<double>& column : relative) {
    for (size_t rank = 0; rank < column.size(); ++rank) slowest[rank] = std::fmax(slowest[rank], column[rank]);
  }
  std::vector<int64_t> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int64_t a, int64_t b) {
    return slowest[static_cast<size_t>(a)] > slowest[static_cast<size_t>(b)];
  });
  ranks.resize(std::min(world, kMaxHeatRows));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

RankHeatMap::Cell heat_cell(const RankTable& column, const std::vector<double>& relative, int64_t rank) {
  const auto index = static_cast<size_t>(rank);
  if (index >= column.ranks.size()) return {.relative = NAN, .own_seconds = NAN, .cause = std::nullopt};
  RankHeatMap::Cell cell{.relative = relative[index],
                         .own_seconds = column.ranks[index].own() / static_cast<double>(column.steps()),
                         .cause = std::nullopt};
  if (cell.relative >= kSlowRatio) cell.cause = largest_excess(column, rank);
  return cell;
}

}  // namespace

RankHeatMap rank_heat_map(const std::vector<RankTable>& tables) {
  const std::vector<RankTable> columns = heat_columns(tables);
  RankHeatMap map;
  std::vector<std::vector<double>> relative;
  for (const RankTable& column : columns) {
    map.columns.push_back({column.first_step, column.last_step});
    map.world = std::max(map.world, std::ssize(column.ranks));
    relative.push_back(relative_own_times(column));
  }
  map.ranks = heat_rows(relative, static_cast<size_t>(map.world));
  for (const int64_t rank : map.ranks) {
    std::vector<RankHeatMap::Cell>& row = map.cells.emplace_back();
    for (size_t i = 0; i < columns.size(); ++i) row.push_back(heat_cell(columns[i], relative[i], rank));
  }
  return map;
}

}  // namespace concord
