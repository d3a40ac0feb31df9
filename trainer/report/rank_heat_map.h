// The heat map of the ranks' times on the page: one row per rank, one column per log line, coloured by slowness. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/report/rank_times.h"

namespace concord {

// Maximum size that is readable on a screen. Additional columns are merged with adjacent ones; among more ranks, those
// that were slowest compared with their peers in some column are shown.
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
    double relative = 0;                // own time divided by the median of its peers
    double own_seconds = 0;             // per step
    std::optional<RankActivity> cause;  // if it is slow
  };
  std::vector<int64_t> ranks;  // rank of each row
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> cells;  // by row, then column
  int64_t world = 0;                     // maximum number of ranks of the job
};

RankHeatMap rank_heat_map(const std::vector<RankTable>& tables);

}  // namespace concord
