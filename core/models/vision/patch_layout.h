// The order of an image's patches in a vision tower, and what depends on it: positions, the segments that attend to
// each other, windows, and the interpolation of learned positions. Patches come frame by frame, in a frame block by
// block (merge x merge patches, which become one token), in a block row by row. Pure; threads: any.
#pragma once

#include <cstdint>
#include <vector>

#include "core/models/vision/media_grid.h"

namespace concord {

struct PatchPositions {
  std::vector<int64_t> rows, columns;  // one per patch, in its frame
};
PatchPositions patch_positions(const MediaGrids& grids, int64_t merge);

// Boundaries of the frames of all media [0, ..., patches].
std::vector<int64_t> frame_boundaries(const MediaGrids& grids);

// Qwen 2.5 VL's windows: each frame is cut into squares of |side| x |side| merged tokens, smaller at its right and
// bottom.
struct WindowLayout {
  std::vector<int64_t> order;       // tokens window by window
  std::vector<int64_t> boundaries;  // [0, ..., patches], of the windows in this order
};
WindowLayout window_layout(const MediaGrids& grids, int64_t merge, int64_t side);

// Bilinear interpolation of a learned table of |side| x |side| positions, corners on corners: for each patch four rows
// of the table, and their weights.
struct TableTaps {
  std::vector<int64_t> rows;   // [patches, 4]
  std::vector<float> weights;  // [patches, 4]
};
TableTaps table_taps(const MediaGrids& grids, int64_t merge, int64_t side);

}  // namespace concord
