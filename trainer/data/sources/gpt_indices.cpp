#include "trainer/data/sources/gpt_indices.h"

#include <fmt/core.h>

#include <limits>
#include <numeric>

#include "core/base/config_error.h"
#include "trainer/data/numpy_shuffle.h"

namespace concord {
namespace {

constexpr double kSeparateBelow = 0.80;  // Megatron's threshold

struct Counts {
  int64_t tokens = 0;  // in one epoch
  int64_t epochs = 1;
  int64_t samples = 0;       // in all epochs
  int64_t before_final = 0;  // samples that end before the last epoch
  bool separate_final_epoch = false;
};

int64_t samples_in(int64_t tokens, int64_t seq_length) { return tokens < 1 ? 0 : (tokens - 1) / seq_length; }

void check(const Counts& counts, size_t sequences, const GptIndexOptions& options) {
  if (counts.samples < 1) {
    throw ConfigError(
        fmt::format("the data has {} tokens, but one sample of sequence length {} needs {}; use more data or a shorter "
                    "sequence length",
                    counts.tokens, options.seq_length, options.seq_length + 1));
  }
  if (static_cast<int64_t>(sequences) > std::numeric_limits<int32_t>::max() / counts.epochs) {
    throw ConfigError(
        fmt::format("{} sequences in {} epochs exceed the index limit of 2^31 - 1; use less data or fewer steps",
                    sequences, counts.epochs));
  }
  if (counts.samples > int64_t{std::numeric_limits<uint32_t>::max()}) {
    throw ConfigError(fmt::format("{} samples exceed the index limit of 2^32 - 1; use fewer steps", counts.samples));
  }
}

Counts count(std::span<const int32_t> lengths, const GptIndexOptions& options) {
  if (options.seq_length < 1)
    throw ConfigError(fmt::format("the sequence length is {}; must be >= 1", options.seq_length));
  if (options.seed < 0 || options.seed > int64_t{std::numeric_limits<uint32_t>::max()}) {
    throw ConfigError(fmt::format("the seed is {}; must be from 0 to 2^32 - 1, as in numpy", options.seed));
  }
  Counts counts;
  counts.tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (options.samples && counts.tokens > 0) {
    if (*options.samples < 1 || *options.samples > std::numeric_limits<int64_t>::max() / options.seq_length - 1) {
      throw ConfigError(fmt::format("requested {} samples of {} tokens; must be >= 1 sample and < 2^63 tokens in total",
                                    *options.samples, options.seq_length));
    }
    const int64_t needed = *options.samples * options.seq_length + 1;
    counts.epochs = (needed - 1) / counts.tokens + 1;
  }
  if (counts.tokens > 0 && counts.epochs > std::numeric_limits<int64_t>::max() / counts.tokens) {
    throw ConfigError(
        fmt::format("{} epochs of {} tokens overflow a 64-bit token count", counts.epochs, counts.tokens));
  }
  counts.samples = samples_in(counts.epochs * counts.tokens, options.seq_length);
  counts.before_final = samples_in((counts.epochs - 1) * counts.tokens, options.seq_length);
  const double per_epoch = static_cast<double>(samples_in(counts.tokens, options.seq_length));
  counts.separate_final_epoch =
      counts.epochs > 1 && *options.samples - counts.before_final < static_cast<int64_t>(kSeparateBelow * per_epoch);
  check(counts, lengths.size(), options);
  return counts;
}

std::vector<int32_t> make_document_index(size_t sequences, const Counts& counts) {
  std::vector<int32_t> index(sequences * static_cast<size_t>(counts.epochs));
  for (size_t begin = 0; begin < index.size(); begin += sequences) {
    std::iota(index.begin() + static_cast<std::ptrdiff_t>(begin),
              index.begin() + static_cast<std::ptrdiff_t>(begin + sequences), 0);
  }
  return index;
}

// Walks along the documents; a sample ends with the token that the next one starts with.
std::vector<SampleStart> make_sample_index(std::span<const int32_t> lengths, std::span<const int32_t> document_index,
                                           int64_t samples, int64_t seq_length) {
  std::vector<SampleStart> index(static_cast<size_t>(samples) + 1);
  size_t document = 0;
  int64_t offset = 0;
  for (size_t sample = 1; sample < index.size(); ++sample) {
    offset += seq_length;  // position of the shared token in |document|
    for (int64_t length; offset >= (length = lengths[static_cast<size_t>(document_index[document])]); ++document)
      offset -= length;
    index[sample] = {static_cast<int32_t>(document), static_cast<int32_t>(offset)};
  }
  return index;
}

// Shuffles everything, or the parts before and after |apart| separately.
template <typename Value>
void shuffle_apart(std::span<Value> values, size_t apart, std::mt19937& random) {
  numpy_shuffle(values.first(apart), random);
  numpy_shuffle(values.subspan(apart), random);
}

}  // namespace

GptIndices build_gpt_indices(std::span<const int32_t> lengths, const GptIndexOptions& options) {
  const Counts counts = count(lengths, options);
  const bool separate = counts.separate_final_epoch;
  std::mt19937 random(static_cast<uint32_t>(options.seed));  // one stream: documents first, then samples
  GptIndices indices{.epochs = counts.epochs, .separate_final_epoch = separate};
  indices.document_index = make_document_index(lengths.size(), counts);
  if (options.shuffle) {
    const size_t all = indices.document_index.size();
    shuffle_apart(std::span(indices.document_index), separate ? all - lengths.size() : all, random);
  }
  indices.sample_index = make_sample_index(lengths, indices.document_index, counts.samples, options.seq_length);
  indices.shuffle_index.resize(static_cast<size_t>(counts.samples));
  std::iota(indices.shuffle_index.begin(), indices.shuffle_index.end(), 0U);
  if (options.shuffle) {
    shuffle_apart(std::span(indices.shuffle_index),
                  static_cast<size_t>(separate ? counts.before_final : counts.samples), random);
  }
  return indices;
}

}  // namespace concord
