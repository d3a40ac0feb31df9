// What the page draws of the ranks' times: a row per rank, a column per log line, and how slow the rank was. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/report/rank_times.h"

namespace concord {

// More than these cannot be told apart on a screen. Of more columns, neighbours are put together; of more ranks, those
// stay that were slowest compared with their peers in some column.
inline constexpr size_t kMaxHeatColumns = 120;
inline constexpr size_t kMaxHeatRows = 64;

struct RankHeatMap {
  struct Column {
    int64_t first_step = 0;
    int64_t last_step = 0;
    bool operator==(const Column&) const = default;
  };
  // NaN: the rank has no peers, or is not part of the job in this column.
  struct Cell {
    double relative = 0;                // own time, divided by the median of its peers'
    double own_seconds = 0;             // per step
    std::optional<RankActivity> cause;  // of a slow one
  };
  std::vector<int64_t> ranks;  // of the rows
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> cells;  // by row, then column
  int64_t world = 0;                     // ranks of the job, the most it had
};

RankHeatMap rank_heat_map(const std::vector<RankTable>& tables);

}  // namespace concord
