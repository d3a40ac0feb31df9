#include "trainer/data/sources/row_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "core/base/config_error.h"
#include "trainer/data/build/content_hash.h"
#include "trainer/data/token_batch.h"

namespace concord {
namespace {

// The first label has no preceding token to predict it.
bool has_label(const TokensAndLabels& tokens, size_t begin, size_t end) {
  return std::any_of(tokens.labels.begin() + static_cast<std::ptrdiff_t>(begin) + 1,
                     tokens.labels.begin() + static_cast<std::ptrdiff_t>(end),
                     [](int64_t label) { return label != kIgnoredToken; });
}

}  // namespace

RowSource::RowSource(std::string file, const DataArguments& arguments)
    : file_(std::move(file)),
      group_(arguments.rows_per_sample()),
      cutoff_len_(arguments.cutoff_len),
      truncation_(arguments.truncation),
      vocab_size_(arguments.vocab_size),
      longest_(arguments.seq_length) {
  if (truncation_ == Truncation::split && arguments.pairs) {
    throw ConfigError("truncation is split, but a pair cannot be split; use right, left or drop");
  }
  if (truncation_ == Truncation::split && cutoff_len_ == 1) {
    throw ConfigError("truncation is split, but samples of cutoff_len 1 have no token to predict; use cutoff_len >= 2");
  }
}

void RowSource::add(const TokensAndLabels& tokens, const std::string& place) {
  const bool is_long = cutoff_len_ > 0 && std::ssize(tokens.ids) > cutoff_len_;
  if (is_long && truncation_ == Truncation::split) return add_pieces(tokens, place);
  const std::optional<Part> part = kept_of(tokens, place);
  if (!part) {
    ++dropped_;
    return;
  }
  if (part->end - part->begin < tokens.ids.size()) ++cut_;
  append(tokens, *part, place);
}

void RowSource::add(const PairReader::Pair& pair, const std::string& place) {
  const auto& [chosen, rejected, margin] = pair;
  const std::optional<Part> better = kept_of(chosen, place), worse = kept_of(rejected, place);
  if (!better || !worse) {
    ++dropped_;
    return;
  }
  const size_t kept = better->end - better->begin + worse->end - worse->begin;
  if (kept < chosen.ids.size() + rejected.ids.size()) ++cut_;
  append(chosen, *better, place);
  append(rejected, *worse, place);
  margins_.push_back(margin);
}

std::optional<RowSource::Part> RowSource::kept_of(const TokensAndLabels& tokens, const std::string& place) const {
  const size_t count = tokens.ids.size();
  if (count == 0) throw ConfigError(fmt::format("{}, {}: the sample has no tokens", file_, place));
  const auto most = static_cast<size_t>(cutoff_len_);
  if (cutoff_len_ == 0 || count <= most) return Part{0, count};
  if (truncation_ == Truncation::drop) return std::nullopt;
  const size_t begin = truncation_ == Truncation::left ? count - most : 0;
  return has_label(tokens, begin, begin + most) ? std::optional(Part{begin, begin + most}) : std::nullopt;
}

// A piece starts with the last token of the previous one, so that no label is lost.
void RowSource::add_pieces(const TokensAndLabels& tokens, const std::string& place) {
  const size_t count = tokens.ids.size(), most = static_cast<size_t>(cutoff_len_);
  const int64_t before = size();
  for (size_t begin = 0; begin + 1 < count; begin += most - 1) {
    const Part piece{begin, std::min(begin + most, count)};
    if (has_label(tokens, piece.begin, piece.end)) append(tokens, piece, place);
  }
  if (size() == before) {
    ++dropped_;
    return;
  }
  ++cut_;
  pieces_ += size() - before;
}

void RowSource::append(const TokensAndLabels& tokens, const Part& part, const std::string& place) {
  const auto [begin, end] = part;
  const auto count = static_cast<int64_t>(end - begin);
  if (longest_ > 0 && count > longest_) {
    throw ConfigError(
        fmt::format("{}, {}: the sample has {} tokens, more than the sequence length {}; increase it, "
                    "shorten the sample, or cut such samples with cutoff_len",
                    file_, place, count, longest_));
  }
  const int64_t limit = vocab_size_ > 0 ? vocab_size_ : int64_t{std::numeric_limits<int32_t>::max()} + 1;
  const auto check = [&](int64_t id, const char* what, size_t position) {
    if (id >= 0 && id < limit) return;
    throw ConfigError(fmt::format(
        "{}, {}, position {}: {} {} is not in the vocabulary (0 to {}); was the data built with another tokenizer?",
        file_, place, position, what, id, limit - 1));
  };
  for (size_t i = begin; i < end; ++i) {
    check(tokens.ids[i], "token id", i);
    if (tokens.labels[i] != kIgnoredToken) check(tokens.labels[i], "label", i);
    ids_.push_back(static_cast<int32_t>(tokens.ids[i]));
    labels_.push_back(static_cast<int32_t>(tokens.labels[i]));
  }
  begins_.push_back(static_cast<int64_t>(ids_.size()));
}

std::string RowSource::cut_text() const {
  if (cut_ + dropped_ == 0) return "";
  const std::string dropped = dropped_ == 0 ? "" : fmt::format("{} dropped", dropped_);
  const std::string cut = cut_ == 0 ? ""
                          : pieces_ == 0
                              ? fmt::format("{} cut to {} tokens", cut_, cutoff_len_)
                              : fmt::format("{} split into {} pieces of up to {} tokens", cut_, pieces_, cutoff_len_);
  const int64_t given = size() / group_ + dropped_ - (pieces_ == 0 ? 0 : pieces_ - cut_);
  return fmt::format("{}{}{} of {} {}", cut, cut_ > 0 && dropped_ > 0 ? ", " : "", dropped, given,
                     group_ == 2 ? "pairs" : "samples");
}

void RowSource::finish() {
  if (size() == 0 && dropped_ > 0) {
    throw ConfigError(fmt::format("{}: all {} samples are longer than cutoff_len {} and were dropped; increase it",
                                  file_, dropped_, cutoff_len_));
  }
  if (size() == 0) throw ConfigError(file_ + ": contains no samples");
}

int64_t RowSource::length(int64_t index) const {
  const size_t i = static_cast<size_t>(index);
  return begins_[i + 1] - begins_[i];
}

Sample RowSource::at(int64_t index) const {
  const std::ptrdiff_t begin = begins_[static_cast<size_t>(index)], end = begins_[static_cast<size_t>(index) + 1];
  Sample sample{.ids = {ids_.begin() + begin, ids_.begin() + end},
                .labels = {labels_.begin() + begin + 1, labels_.begin() + end},
                .margin = group_ == 2 ? margins_[static_cast<size_t>(index / 2)] : 0};
  sample.labels.push_back(kIgnoredToken);  // shifted: the token after the last one is unknown
  return sample;
}

DataIdentity RowSource::identity() const {
  ContentHash hash;
  hash.add(begins_.data(), begins_.size());
  hash.add(ids_.data(), ids_.size());
  hash.add(labels_.data(), labels_.size());
  const bool has_margins = std::ranges::any_of(margins_, [](double margin) { return margin != 0; });
  for (size_t i = 0; has_margins && i < margins_.size(); ++i) hash.add(std::bit_cast<uint64_t>(margins_[i]));
  return {{"samples", std::to_string(size())}, {"contents", fmt::format("{:016x}", hash.value())}};
}

}  // namespace concord
