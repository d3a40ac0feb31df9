// A micro-batch as plain vectors, built by the loader's thread before it is converted to tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "core/models/vision/media_grid.h"

namespace concord {

inline constexpr int64_t kIgnoredToken = -100;  // equal to kIgnoredLabel of core/models/micro_batch.h

// Images and videos, each kind in the order of its tokens.
struct BatchMedia {
  MediaGrids images = {};
  MediaGrids videos = {};
  std::vector<double> seconds_per_group = {};  // per video
  std::vector<float> image_pixels = {};        // [patches, pixels of a patch], like video_pixels
  std::vector<float> video_pixels = {};

  bool empty() const { return images.empty() && videos.empty(); }
  void append(const BatchMedia& other) {
    const auto add = [](auto* to, const auto& from) { to->insert(to->end(), from.begin(), from.end()); };
    add(&images, other.images);
    add(&videos, other.videos);
    add(&seconds_per_group, other.seconds_per_group);
    add(&image_pixels, other.image_pixels);
    add(&video_pixels, other.video_pixels);
  }
  bool operator==(const BatchMedia&) const = default;
};

// |rows| sequences of |columns| tokens, row by row; packed: one row with all sequences concatenated.
struct TokenBatch {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;        // the next token, kIgnoredToken for none
  std::vector<int64_t> position_ids;  // packed: restarts in each sequence; otherwise, and with images, empty
  std::vector<int64_t> cu_seqlens;    // packed: [0, ..., columns]; otherwise empty
  std::vector<double> margins = {};   // one per preference pair
  std::vector<int64_t> samples = {};  // source index of each preference pair, -1 for padding; otherwise empty
  BatchMedia media = {};

  bool operator==(const TokenBatch&) const = default;
};

// Counts of a global batch, over all data-parallel ranks, without padding.
struct BatchContents {
  int64_t samples = 0;
  int64_t tokens = 0;
  double squared_lengths = 0;  // sum over sequences: the cost of attention
  int64_t patches = 0;         // patches of images and videos
  double squared_patches = 0;  // sum over images and groups of frames: the cost of a vision tower's attention

  bool operator==(const BatchContents&) const = default;
};

}  // namespace concord
