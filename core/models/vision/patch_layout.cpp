#include "core/models/vision/patch_layout.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace concord {
namespace {

// Calls |visit|(grid, row, column) for all patches in order.
template <class Visit>
void for_each_patch(const MediaGrids& grids, int64_t merge, const Visit& visit) {
  for (const MediaGrid& grid : grids) {
    for (int64_t frame = 0; frame < grid.frames; ++frame) {
      for (int64_t block = 0; block < grid.rows * grid.columns; ++block) {
        const int64_t inside = block % (merge * merge), number = block / (merge * merge);
        const int64_t blocks = grid.columns / merge;  // in a row
        visit(grid, number / blocks * merge + inside / merge, number % blocks * merge + inside % merge);
      }
    }
  }
}

// The two entries of an axis of |side| next to position |index| of |size|, and their weights.
struct AxisTaps {
  std::array<int64_t, 2> at;
  std::array<float, 2> weight;
};

AxisTaps axis_taps(int64_t index, int64_t size, int64_t side) {
  const float source =
      static_cast<float>(index) * static_cast<float>(side - 1) / static_cast<float>(std::max<int64_t>(size - 1, 1));
  const float floor = std::floor(source);
  const auto first = static_cast<int64_t>(floor);
  return {{first, std::min(first + 1, side - 1)}, {1 - (source - floor), source - floor}};
}

}  // namespace

PatchPositions patch_positions(const MediaGrids& grids, int64_t merge) {
  PatchPositions positions;
  for_each_patch(grids, merge, [&](const MediaGrid&, int64_t row, int64_t column) {
    positions.rows.push_back(row);
    positions.columns.push_back(column);
  });
  return positions;
}

std::vector<int64_t> frame_boundaries(const MediaGrids& grids) {
  std::vector<int64_t> boundaries{0};
  for (const MediaGrid& grid : grids) {
    for (int64_t frame = 0; frame < grid.frames; ++frame) {
      boundaries.push_back(boundaries.back() + grid.rows * grid.columns);
    }
  }
  return boundaries;
}

WindowLayout window_layout(const MediaGrids& grids, int64_t merge, int64_t side) {
  WindowLayout layout{{}, {0}};
  int64_t first = 0;  // token of the frame
  for (const MediaGrid& grid : grids) {
    const int64_t rows = grid.rows / merge, columns = grid.columns / merge;
    for (int64_t frame = 0; frame < grid.frames; ++frame, first += rows * columns) {
      for (int64_t top = 0; top < rows; top += side) {
        for (int64_t left = 0; left < columns; left += side) {
          const int64_t bottom = std::min(top + side, rows), right = std::min(left + side, columns);
          for (int64_t y = top; y < bottom; ++y) {
            for (int64_t x = left; x < right; ++x) layout.order.push_back(first + y * columns + x);
          }
          layout.boundaries.push_back(static_cast<int64_t>(layout.order.size()) * merge * merge);
        }
      }
    }
  }
  return layout;
}

TableTaps table_taps(const MediaGrids& grids, int64_t merge, int64_t side) {
  TableTaps taps;
  for_each_patch(grids, merge, [&](const MediaGrid& grid, int64_t row, int64_t column) {
    const AxisTaps y = axis_taps(row, grid.rows, side), x = axis_taps(column, grid.columns, side);
    for (size_t i = 0; i < 2; ++i) {
      for (size_t j = 0; j < 2; ++j) {
        taps.rows.push_back(y.at[i] * side + x.at[j]);
        taps.weights.push_back(y.weight[i] * x.weight[j]);
      }
    }
  });
  return taps;
}

}  // namespace concord
