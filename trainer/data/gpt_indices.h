// How a corpus is split into samples, as Megatron's GPTDataset does it, number for number: the documents of all epochs
// in a shuffled row, samples of seq_length + 1 tokens cut from it one after another (the last token of one is the first
// of the next), and an order in which the samples are read.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace concord {

struct GptIndexOptions {
  int64_t seq_length = 0;
  std::optional<int64_t> samples = {};  // at least so many, by repeating the documents; none: one epoch
  int64_t seed = 0;                     // 0 to 2^32 - 1
  bool shuffle = true;                  // false: documents and samples in their order
};

// A sample begins at token |offset| of the sequence document_index[document].
struct SampleStart {
  int32_t document = 0;
  int32_t offset = 0;
  bool operator==(const SampleStart&) const = default;
};

struct GptIndices {
  std::vector<int32_t> document_index = {};  // sequences in the order they are read, all epochs
  std::vector<SampleStart> sample_index =
      {};                                    // one more than there are samples: the last is where the last sample ends
  std::vector<uint32_t> shuffle_index = {};  // reading order -> sample
  int64_t epochs = 1;
  bool separate_final_epoch = false;  // the last epoch is used for less than 80 % and shuffled separately
};

// |lengths| are the tokens of each sequence. Pure. Throws ConfigError if there are not enough tokens for one sample,
// or more than 2^31 - 1 sequences or 2^32 - 1 samples.
GptIndices build_gpt_indices(std::span<const int32_t> lengths, const GptIndexOptions& options);

}  // namespace concord
