// Splits a corpus into samples exactly like Megatron's GPTDataset: the documents of all epochs are shuffled and
// concatenated, split into samples of seq_length + 1 tokens (the last token of one is the first of the next), and the
// samples are read in a shuffled order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace concord {

struct GptIndexOptions {
  int64_t seq_length = 0;
  std::optional<int64_t> samples = {};  // minimum, by repeating the documents; nullopt: one epoch
  int64_t seed = 0;                     // 0 to 2^32 - 1
  bool shuffle = true;                  // false: documents and samples in order
};

// A sample starts at token |offset| of the sequence document_index[document].
struct SampleStart {
  int32_t document = 0;
  int32_t offset = 0;
  bool operator==(const SampleStart&) const = default;
};

struct GptIndices {
  std::vector<int32_t> document_index = {};    // sequences in reading order, all epochs
  std::vector<SampleStart> sample_index = {};  // one more than there are samples: the end of the last sample
  std::vector<uint32_t> shuffle_index = {};    // reading order -> sample
  int64_t epochs = 1;
  bool separate_final_epoch = false;  // less than 80 % of the last epoch is used, and it is shuffled separately
};

// |lengths| are the tokens of each sequence. Pure. Throws ConfigError if there are not enough tokens for one sample, or
// more than 2^31 - 1 sequences or 2^32 - 1 samples.
GptIndices build_gpt_indices(std::span<const int32_t> lengths, const GptIndexOptions& options);

}  // namespace concord
