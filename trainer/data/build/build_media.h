// `concord data build` of conversations with images and videos: pieces of the input become pieces of the data set,
// whose samples are then distributed to its shards (trainer/data/media/media_set.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/data/build/build_shards.h"
#include "trainer/data/media/media_processor.h"

namespace concord {

// Like build_shard(), but writes |name|.safetensors (trainer/data/media/media_file.h). Media that cannot be read are
// refused, with file and line, or with skip_bad_images logged on standard error; their samples are then left out.
ShardCounts build_media_piece(const BuildArguments& arguments, const BuildInput& input, const BuildShard& shard,
                              Tokenizer& tokenizer, MediaProcessor& processor, const std::string& name);

// Samples [begin, end) of a piece.
struct PieceSamples {
  int64_t piece = 0;
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const PieceSamples&) const = default;
};
// The samples of each shard, in the order of the pieces.
using MediaShardPlan = std::vector<std::vector<PieceSamples>>;

// |bytes| are those of each sample of each piece. A shard has at most |most| bytes, or one sample; |group| consecutive
// samples (of a pair: 2) stay together. Pure.
MediaShardPlan plan_media_shards(const std::vector<std::vector<int64_t>>& bytes, int64_t most, int64_t group);

// Throws ConfigError unless the folder |output| can be written: it does not exist, or is a data set with media that may
// be replaced.
void check_media_output(const std::string& output, const OutputRules& rules);

// Joins the pieces |names| to a data set in |folder|, in |workers| threads. Continues after a crash: shards that exist
// stay. Pieces are removed as soon as their samples are in a shard, so that little more space is needed than for the
// data set. Throws std::runtime_error if the disk is full.
class MediaJoin {
 public:
  // |folder| holds the plan, and the data set until publish().
  MediaJoin(std::string folder, std::vector<std::string> names);

  bool has_begun() const;  // some pieces may be gone already
  ShardCounts run(int64_t most_bytes, int64_t workers);
  // Makes the data set appear as |output|, in the place of an earlier one.
  void publish(const std::string& output) const;

 private:
  MediaShardPlan make_plan(int64_t most_bytes) const;
  MediaShardPlan read_plan() const;
  void write_shard(const std::string& path, const std::vector<PieceSamples>& pieces) const;
  std::string shard(size_t number) const;

  std::string folder_;
  std::vector<std::string> names_;
};

}  // namespace concord
