#include "trainer/data/row_source.h"

#include <fmt/core.h>

#include <limits>

#include "core/config_error.h"
#include "trainer/data/content_hash.h"
#include "trainer/data/token_batch.h"

namespace concord {

RowSource::RowSource(std::string file, const DataArguments& arguments)
    : file_(std::move(file)), vocab_size_(arguments.vocab_size), longest_(arguments.seq_length) {}

void RowSource::add(const AlignedTokens& tokens, const std::string& place) {
  const int64_t count = static_cast<int64_t>(tokens.ids.size());
  if (count == 0) throw ConfigError(fmt::format("{}, {}: the sample has no tokens", file_, place));
  if (longest_ > 0 && count > longest_) {
    throw ConfigError(fmt::format(
        "{}, {}: the sample has {} tokens, more than the sequence length {}; increase it or shorten the sample", file_,
        place, count, longest_));
  }
  const int64_t limit = vocab_size_ > 0 ? vocab_size_ : int64_t{std::numeric_limits<int32_t>::max()} + 1;
  const auto check = [&](int64_t id, const char* what, size_t position) {
    if (id >= 0 && id < limit) return;
    throw ConfigError(fmt::format(
        "{}, {}, position {}: {} {} is not in the vocabulary (0 to {}); was the data built with another tokenizer?",
        file_, place, position, what, id, limit - 1));
  };
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    check(tokens.ids[i], "token id", i);
    if (tokens.labels[i] != kIgnoredToken) check(tokens.labels[i], "label", i);
    ids_.push_back(static_cast<int32_t>(tokens.ids[i]));
    labels_.push_back(static_cast<int32_t>(tokens.labels[i]));
  }
  begins_.push_back(static_cast<int64_t>(ids_.size()));
}

void RowSource::finish() {
  if (size() == 0) throw ConfigError(file_ + ": contains no samples");
}

int64_t RowSource::length(int64_t index) const {
  const size_t i = static_cast<size_t>(index);
  return begins_[i + 1] - begins_[i];
}

Sample RowSource::at(int64_t index) const {
  const std::ptrdiff_t begin = begins_[static_cast<size_t>(index)], end = begins_[static_cast<size_t>(index) + 1];
  Sample sample{.ids = {ids_.begin() + begin, ids_.begin() + end},
                .labels = {labels_.begin() + begin + 1, labels_.begin() + end}};
  sample.labels.push_back(kIgnoredToken);  // shifted: the token after the last one is unknown
  return sample;
}

DataIdentity RowSource::identity() const {
  ContentHash hash;
  hash.add(begins_.data(), begins_.size());
  hash.add(ids_.data(), ids_.size());
  hash.add(labels_.data(), labels_.size());
  return {{"samples", std::to_string(size())}, {"contents", fmt::format("{:016x}", hash.value())}};
}

}  // namespace concord
