#include "core/models/vision/media_positions.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/config_error.h"

namespace concord {

void check_grids(const MediaGrids& grids, int64_t merge) {
  for (const MediaGrid& grid : grids) {
    if (grid.frames > 0 && grid.rows > 0 && grid.columns > 0 && grid.rows % merge == 0 && grid.columns % merge == 0) {
      continue;
    }
    throw ConfigError(
        fmt::format("batch: a grid is {} x {} x {} patches; must be at least 1 x {} x {}, with rows and "
                    "columns that are multiples of {}",
                    grid.frames, grid.rows, grid.columns, merge, merge, merge));
  }
}

// A medium, or one group of frames of it, whose tokens are consecutive.
struct MediaPositions::Run {
  MediaGrid grid;
  float seconds_per_group;  // in tokens
};

MediaPositions::MediaPositions(const MediaTokens& tokens, const MediaList& media) : tokens_(tokens), media_(media) {
  check_grids(media.images, tokens.merge);
  check_grids(media.videos, tokens.merge);
}

MediaPositions::Run MediaPositions::next_run(bool is_video, size_t token) {
  const MediaGrids& grids = is_video ? media_.videos : media_.images;
  size_t& taken = is_video ? videos_ : images_;
  if (taken == grids.size()) {
    throw ConfigError(
        fmt::format("batch: token {} of a sequence stands for {} {}, but there are only {}; give one grid "
                    "for each",
                    token, is_video ? "video" : "image", taken + 1, grids.size()));
  }
  Run run{grids[taken], 1};
  if (!is_video) {
    ++taken;
    return run;
  }
  if (tokens_.times == FrameTimes::seconds) {
    const double seconds = media_.seconds_per_group.empty() ? 1 : media_.seconds_per_group.at(taken);
    run.seconds_per_group = static_cast<float>(tokens_.tokens_per_second) * static_cast<float>(seconds);
  }
  if (tokens_.times == FrameTimes::separate && ++frames_ < grids[taken].frames) {
    run.grid.frames = 1;
    return run;
  }
  if (tokens_.times == FrameTimes::separate) run.grid.frames = 1;
  frames_ = 0;
  ++taken;
  return run;
}

std::array<std::vector<int64_t>, 3> MediaPositions::next(std::span<const int64_t> ids) {
  std::array<std::vector<int64_t>, 3> positions;
  const auto add = [&](int64_t time, int64_t row, int64_t column) {
    positions[0].push_back(time);
    positions[1].push_back(row);
    positions[2].push_back(column);
  };
  int64_t at = 0;
  for (size_t i = 0; i < ids.size();) {
    const bool is_video = ids[i] == tokens_.video_token;
    if (!is_video && ids[i] != tokens_.image_token) {
      add(at, at, at);
      ++at, ++i;
      continue;
    }
    const auto [grid, seconds] = next_run(is_video, i);
    const int64_t rows = grid.rows / tokens_.merge, columns = grid.columns / tokens_.merge;
    const auto count = static_cast<size_t>(grid.tokens(tokens_.merge));
    const auto same =
        std::find_if(ids.begin() + static_cast<std::ptrdiff_t>(i), ids.end(), [&](int64_t id) { return id != ids[i]; });
    const auto found = static_cast<size_t>(same - ids.begin()) - i;
    if (found < count) {
      throw ConfigError(
          fmt::format("batch: {} of {} x {} x {} patches needs {} tokens, but token {} of its sequence "
                      "is the first of only {}; do not cut sequences inside of images",
                      is_video ? "a video" : "an image", grid.frames, grid.rows, grid.columns, count, i, found));
    }
    for (int64_t t = 0; t < grid.frames; ++t) {
      const auto time = static_cast<int64_t>(static_cast<float>(t) * seconds);
      for (int64_t y = 0; y < rows; ++y) {
        for (int64_t x = 0; x < columns; ++x) add(at + time, at + y, at + x);
      }
    }
    at += std::max(rows, columns);
    i += count;
  }
  return positions;
}

void MediaPositions::check_all_taken() const {
  if (images_ == media_.images.size() && videos_ == media_.videos.size()) return;
  throw ConfigError(fmt::format("batch: there are {} images and {} videos, but the tokens stand for {} and {} only",
                                media_.images.size(), media_.videos.size(), images_, videos_));
}

FeatureRows feature_rows(std::span<const int64_t> ids, const MediaTokens& tokens, const MediaList& media) {
  const auto wanted = [&](const MediaGrids& grids) {
    int64_t sum = 0;
    for (const MediaGrid& grid : grids) sum += grid.tokens(tokens.merge);
    return sum;
  };
  const int64_t images = wanted(media.images), videos = wanted(media.videos);
  FeatureRows rows;
  int64_t image = 0, video = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool is_video = ids[i] == tokens.video_token;
    if (!is_video && ids[i] != tokens.image_token) continue;
    rows.tokens.push_back(static_cast<int64_t>(i));
    rows.features.push_back(is_video ? images + video++ : image++);
  }
  if (image == images && video == videos) return rows;
  throw ConfigError(
      fmt::format("batch: {} tokens stand for images (id {}) and {} for videos (id {}), but the images "
                  "have {} and the videos {}; the numbers must be equal",
                  image, tokens.image_token, video, tokens.video_token, images, videos));
}

}  // namespace concord
