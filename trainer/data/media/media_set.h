// A data set with images and videos: a folder of shards (media_file.h), and index.json, which lists them:
//
//   {"concord_media_index": 1, "samples": 3, "tokens": 120, "media": 2, "shards": [
//     {"file": "shard-00000.safetensors", "bytes": 4096, "samples": 3, "tokens": 120, "media": 2}]}
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/media/media_file.h"

namespace concord {

struct MediaShard {
  std::string file;   // in the folder
  int64_t bytes = 0;  // of the file
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t media = 0;
  bool operator==(const MediaShard&) const = default;
};

// The name of the shard with this number.
std::string media_shard_name(size_t number);
// Describes a shard that was written.
MediaShard describe_shard(const MediaFile& file);
std::string to_text(const std::vector<MediaShard>& shards);
// Throws ConfigError, starting with |name|, for anything but such an index.
std::vector<MediaShard> parse_media_index(const std::string& text, const std::string& name);

// Returns whether |path| is the folder of a data set with media.
bool is_media_set(const std::string& path);

// Returns whether |path|, a safetensors file, is a shard of such a data set.
bool is_media_file(const std::string& path);

// The shards of a folder, or a single one, opened. Threads: any.
class MediaSet {
 public:
  // |path| is a folder, or a file. Throws ConfigError for a shard that is missing, or that is not the one in the index.
  explicit MediaSet(const std::string& path);

  const MediaFormat& format() const { return shards_.front().format(); }
  bool has_pairs() const { return shards_.front().has_pairs(); }
  bool has_media() const;
  int64_t samples() const { return firsts_.back(); }
  const std::deque<MediaFile>& shards() const { return shards_; }

  TokensAndLabels sample(int64_t index) const { return shard(index).sample(local(index)); }
  double margin(int64_t sample) const { return shard(sample).margin(local(sample)); }
  std::span<const Medium> media(int64_t sample) const { return shard(sample).media(local(sample)); }
  MediaView view(int64_t sample) const { return shard(sample).view(local(sample)); }
  void release(int64_t sample, const MediaView& view) const { shard(sample).release(view); }

 private:
  void add(const std::string& file);
  size_t number_of(int64_t sample) const;
  const MediaFile& shard(int64_t sample) const { return shards_[number_of(sample)]; }
  int64_t local(int64_t sample) const { return sample - firsts_[number_of(sample)]; }

  std::deque<MediaFile> shards_;
  std::vector<int64_t> firsts_ = {0};  // first sample of each shard, and the end
};

// Returns the path of a file that media of |set| were read from and that has changed since; empty if there is none.
// Files that no longer exist have not changed.
std::string changed_source(const MediaSet& set);

}  // namespace concord
