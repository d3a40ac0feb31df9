// Images and videos as grids of patches. Needs no libtorch.
#pragma once

#include <cstdint>
#include <vector>

namespace concord {

// The patches of an image or video: groups of frames, rows and columns. An image has one group. Rows and columns are
// multiples of the merge size: merge x merge patches become one token.
struct MediaGrid {
  int64_t frames = 1;
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t patches() const { return frames * rows * columns; }
  int64_t tokens(int64_t merge) const { return patches() / (merge * merge); }
  bool operator==(const MediaGrid&) const = default;
};

using MediaGrids = std::vector<MediaGrid>;

}  // namespace concord
