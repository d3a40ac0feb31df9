// Positions of tokens on three axes (time, row, column), for the multimodal rope of Qwen's models: text advances all
// three together, the tokens of an image or video are placed on a grid. Pure; threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/models/vision/media_grid.h"

namespace concord {

// The time axis of a video.
enum class FrameTimes {
  separate,  // each group of frames is placed like an image of its own (Qwen 3 VL, whose text has time stamps)
  counted,   // the index of the group (Qwen 2 VL)
  seconds,   // its time in seconds times tokens_per_second, rounded down (Qwen 2.5 VL)
};

struct MediaTokens {
  int64_t image_token = -1;  // ids of the tokens that stand for images and videos
  int64_t video_token = -1;
  int64_t merge = 2;
  FrameTimes times = FrameTimes::separate;
  int64_t tokens_per_second = 2;  // FrameTimes::seconds only
};

// The images and videos of a batch, each kind in the order of the batch's tokens.
struct MediaList {
  MediaGrids images = {};
  MediaGrids videos = {};
  std::vector<double> seconds_per_group = {};  // one per video, FrameTimes::seconds only; empty: 1
};

// Throws ConfigError for a grid without patches, or whose rows or columns are not multiples of |merge|.
void check_grids(const MediaGrids& grids, int64_t merge);

// Takes the media of consecutive sequences from a list.
class MediaPositions {
 public:
  // |media| has to outlive this object. Throws like check_grids().
  MediaPositions(const MediaTokens& tokens, const MediaList& media);

  // Returns the positions [axis][token] of the next sequence, counted from 0. Throws ConfigError if the sequence has
  // more media tokens than the list has, or if a medium's tokens are interrupted or cut off.
  std::array<std::vector<int64_t>, 3> next(std::span<const int64_t> ids);

  // Throws ConfigError unless all media have been taken.
  void check_all_taken() const;

 private:
  struct Run;
  Run next_run(bool is_video, size_t token);

  MediaTokens tokens_;
  const MediaList& media_;
  size_t images_ = 0;  // taken so far
  size_t videos_ = 0;
  int64_t frames_ = 0;  // taken of the current video, FrameTimes::separate only
};

// The row of features that each media token takes: features are those of all images, followed by those of all videos.
struct FeatureRows {
  std::vector<int64_t> tokens;    // indices of the media tokens among |ids|
  std::vector<int64_t> features;  // for each of them its row
};
// |ids| are those of the whole batch, row by row. Throws ConfigError, with the numbers, if the batch has more or fewer
// such tokens than the media have.
FeatureRows feature_rows(std::span<const int64_t> ids, const MediaTokens& tokens, const MediaList& media);

}  // namespace concord
