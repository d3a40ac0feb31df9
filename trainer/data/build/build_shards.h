// Internals of `concord data build`: splitting the input and building one shard.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/build/build.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/media/media_processor.h"
#include "trainer/data/text/tokenizer.h"

namespace concord {

// A file to read, and the file that the user has given, of which it may be a conversion to lines.
struct BuildInput {
  BuildInput(const std::string& path, std::string given) : file(path), name(std::move(given)) {}
  MappedFile file;
  std::string name;
};

// Bytes [begin, end) of an input: whole lines of a .jsonl, whole paragraphs of a .txt.
struct BuildShard {
  size_t input = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

inline constexpr int64_t kMediaPieceBytes = 64 << 10;

// Tools of one worker.
struct ShardTools {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<MediaProcessor> media;  // null: none
};
ShardTools make_tools(const BuildArguments& arguments);

// Pure: depends only on the inputs and |shard_bytes|.
std::vector<BuildShard> cut_into_shards(const std::deque<BuildInput>& inputs, int64_t shard_bytes);

struct ShardCounts {
  int64_t documents = 0;
  int64_t tokens = 0;
};

// Writes |name|.bin and .idx, with sft |name|.jsonl, with media |name|.safetensors, which appear when complete. Throws
// ConfigError, with file and line, for invalid input.
ShardCounts build_shard(const BuildArguments& arguments, const BuildInput& input, const BuildShard& shard,
                        const ShardTools& tools, const std::string& name);

// Returns the counts of a complete shard; throws ConfigError if it is incomplete.
ShardCounts count_shard(const BuildArguments& arguments, const std::string& name);

// Concatenates the shards |names|, which are not those of media, to arguments.output.
void join_shards(const BuildArguments& arguments, const std::vector<std::string>& names, const Tokenizer& tokenizer);

}  // namespace concord
