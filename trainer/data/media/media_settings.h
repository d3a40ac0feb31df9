// How the images and videos of conversations are read, and how they are stored in a data set. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/models/vision/media_grid.h"

namespace concord {

struct MediaSettings {
  std::string processor = {};    // folder of the model, whose processor converts media; empty: media are refused
  std::string media_dir = {};    // folder of relative paths; empty: that of the file of records
  bool skip_bad_images = false;  // samples whose media cannot be read are left out; false: an error
  // Images, and frames of videos, are first shrunk to this many pixels, as in LLaMA-Factory; 0: not
  int64_t image_max_pixels = 0;
  int64_t image_min_pixels = 0;  // or enlarged
  int64_t video_max_pixels = 0;
  int64_t video_min_pixels = 0;
  double video_fps = 0;      // frames per second that are taken of a video; 0: as many as the processor takes, or 2
  int64_t video_maxlen = 0;  // most frames that are taken of a video; 0: as many as the processor takes
  bool operator==(const MediaSettings&) const = default;
};

// Properties of a processor and its model.
struct MediaFormat {
  int64_t patch_size = 0;
  int64_t temporal_patch_size = 0;  // frames of a patch; an image is repeated as often
  int64_t merge_size = 0;           // merge x merge patches become one token
  int64_t image_token = 0;
  int64_t video_token = -1;                   // -1: none
  std::array<double, 3> mean = {}, std = {};  // pixels are (x - mean) / std of values from 0 to 255

  int64_t image_patch_bytes() const { return 3 * patch_size * patch_size; }
  int64_t video_patch_bytes() const { return temporal_patch_size * image_patch_bytes(); }
  int64_t patch_bytes(bool is_video) const { return is_video ? video_patch_bytes() : image_patch_bytes(); }
  bool operator==(const MediaFormat&) const = default;
};
// Reads {"patch_size", ...}. Throws ConfigError, starting with |name|, for keys that are missing and sizes that are out
// of range.
MediaFormat parse_media_format(const std::string& text, const std::string& name);
std::string to_text(const MediaFormat& format);

// An image or a video of a record that is to be read.
struct RecordMedium {
  bool is_video = false;
  std::string value;  // JSON: where it is, as media_process.py takes it
  bool operator==(const RecordMedium&) const = default;
};

// An image or a video that was read. Its rows and columns are multiples of the merge size.
struct Medium {
  MediaGrid grid;
  bool is_video = false;
  double seconds = 1;  // per group of frames, of a video
  bool operator==(const Medium&) const = default;
};

// The media of a sample, in the order of their tokens.
struct SampleMedia {
  std::vector<Medium> media = {};
  std::string patches = {};  // before normalization: [patches of all media, bytes of a patch of the kind]
  // A line for each: the file that it was read from, as "SIZE TIME PATH" with the time of its last change in
  // nanoseconds, or empty for data that was part of the record.
  std::string sources = {};
};

}  // namespace concord
