#include "trainer/data/text/documents.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/config_error.h"
#include "trainer/data/build/content_hash.h"

namespace concord {
namespace {

constexpr int64_t kReadAtOnce = 1 << 16;
constexpr int64_t kPlaces = 256;  // positions of a large corpus that are hashed: each may wait for a disk
constexpr int64_t kTokensAtAPlace = 256;

[[noreturn]] void refuse_id(const std::string& place, int64_t position, int64_t id, int64_t vocab_size) {
  if (id < 0) throw ConfigError(fmt::format("{}, position {}: token id {} is negative", place, position, id));
  throw ConfigError(
      fmt::format("{}, position {}: token id {} is not less than the vocabulary size {}; was the data built with "
                  "another tokenizer?",
                  place, position, id, vocab_size));
}

}  // namespace

std::vector<int32_t> Documents::lengths() const {
  std::vector<int32_t> lengths(static_cast<size_t>(size()));
  for (int64_t i = 0; i < size(); ++i) lengths[static_cast<size_t>(i)] = length(i);
  return lengths;
}

void check_ids(const Documents& documents, int64_t sequence, int64_t first, const int64_t* ids, int64_t count,
               int64_t vocab_size) {
  const uint64_t limit = vocab_size > 0 ? static_cast<uint64_t>(vocab_size) : uint64_t{1} << 63;
  uint64_t largest = 0;  // as an unsigned number a negative id is larger than all others
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<uint64_t>(ids[i]));
  if (largest < limit) return;
  const int64_t at =
      std::find_if(ids, ids + count, [&](int64_t id) { return static_cast<uint64_t>(id) >= limit; }) - ids;
  refuse_id(documents.place(sequence), first + at, ids[at], vocab_size);
}

uint64_t content_hash(const Documents& documents, int64_t most) {
  ContentHash hash;
  int64_t tokens = 0;
  for (int64_t sequence = 0; sequence < documents.size(); ++sequence) {
    hash.add(static_cast<uint64_t>(documents.length(sequence)));
    tokens += documents.length(sequence);
  }
  const bool is_large = tokens > most;
  const int64_t read = is_large ? std::min(documents.size(), kPlaces) : documents.size();
  const int64_t at_once = is_large ? kTokensAtAPlace : kReadAtOnce;
  std::vector<int64_t> ids(kReadAtOnce);
  for (int64_t i = 0; i < read; ++i) {
    const int64_t sequence = i * (documents.size() / read), length = documents.length(sequence);
    const int64_t stride = is_large ? std::max(at_once, length / (kPlaces / read)) : at_once;
    for (int64_t first = 0; first < length; first += stride) {
      const int64_t count = std::min(at_once, length - first);
      documents.read(sequence, first, count, ids.data());
      hash.add(ids.data(), static_cast<size_t>(count));
    }
  }
  return hash.value();
}

void check_all_ids(const Documents& documents, int64_t vocab_size) {
  std::vector<int64_t> ids(kReadAtOnce);
  for (int64_t sequence = 0; sequence < documents.size(); ++sequence) {
    const int64_t length = documents.length(sequence);
    for (int64_t first = 0; first < length; first += kReadAtOnce) {
      const int64_t count = std::min(kReadAtOnce, length - first);
      documents.read(sequence, first, count, ids.data());
      check_ids(documents, sequence, first, ids.data(), count, vocab_size);
    }
  }
}

}  // namespace concord
