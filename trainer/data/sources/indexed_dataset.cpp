#include "trainer/data/sources/indexed_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

#include "core/base/config_error.h"

namespace concord {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the files are little-endian and are read without conversion");

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kVersion = 1;
constexpr int64_t kHeaderBytes = 34;

template <typename Value>
Value load(const char* at) {  // numbers in .idx start at byte 34, so they are not aligned
  Value value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Calls |function| with a null pointer of the C++ type of |type|.
template <typename Function>
void with_type(TokenType type, const Function& function) {
  switch (type) {
    case TokenType::kUint8: return function(static_cast<uint8_t*>(nullptr));
    case TokenType::kInt8: return function(static_cast<int8_t*>(nullptr));
    case TokenType::kInt16: return function(static_cast<int16_t*>(nullptr));
    case TokenType::kInt32: return function(static_cast<int32_t*>(nullptr));
    case TokenType::kInt64: return function(static_cast<int64_t*>(nullptr));
    case TokenType::kFloat64: return function(static_cast<double*>(nullptr));
    case TokenType::kFloat32: return function(static_cast<float*>(nullptr));
    case TokenType::kUint16: return function(static_cast<uint16_t*>(nullptr));
  }
  throw ConfigError(fmt::format("unknown token type {}", static_cast<int>(type)));
}

// Returns the largest integer up to which all integers are representable.
template <typename Value>
constexpr int64_t largest_exact() {
  if constexpr (std::is_floating_point_v<Value>) {
    return int64_t{1} << std::numeric_limits<Value>::digits;
  } else {
    return static_cast<int64_t>(std::numeric_limits<Value>::max());
  }
}

template <typename Value>
bool fits(int64_t id) {
  if constexpr (std::is_unsigned_v<Value>) return id >= 0 && id <= largest_exact<Value>();
  return id <= largest_exact<Value>() && id >= -largest_exact<Value>() - (std::is_integral_v<Value> ? 1 : 0);
}

bool is_whole(double value) { return std::trunc(value) == value && std::abs(value) <= 9007199254740992.0; }

}  // namespace

const char* to_string(TokenType type) {
  switch (type) {
    case TokenType::kUint8: return "uint8";
    case TokenType::kInt8: return "int8";
    case TokenType::kInt16: return "int16";
    case TokenType::kInt32: return "int32";
    case TokenType::kInt64: return "int64";
    case TokenType::kFloat64: return "float64";
    case TokenType::kFloat32: return "float32";
    case TokenType::kUint16: return "uint16";
  }
  return "unknown";
}

int64_t size_of(TokenType type) {
  int64_t bytes = 0;
  with_type(type, [&](auto* of) { bytes = sizeof(*of); });
  return bytes;
}

TokenType token_type_for(int64_t vocab_size) {
  constexpr int64_t kMegatronsLimit = 65500;
  return vocab_size > 0 && vocab_size < kMegatronsLimit ? TokenType::kUint16 : TokenType::kInt32;
}

IndexedDataset::IndexedDataset(const std::string& prefix) : idx_(prefix + ".idx"), bin_(prefix + ".bin") {
  read_header();
  check_sequences();
  read_document_starts();
}

void IndexedDataset::refuse(const std::string& why) const { throw ConfigError(idx_.path() + ": " + why); }

void IndexedDataset::read_header() {
  if (idx_.size() < kHeaderBytes) {
    refuse(
        fmt::format("has {} bytes, but the header alone takes {}; the file is truncated", idx_.size(), kHeaderBytes));
  }
  const char* const header = idx_.data();
  if (std::string_view(header, kMagic.size()) != kMagic) {
    refuse("does not start with MMIDIDX; it is not a Megatron dataset index");
  }
  const uint64_t version = load<uint64_t>(header + 9);
  if (version != kVersion) refuse(fmt::format("has version {}; only version {} is supported", version, kVersion));
  const uint8_t code = load<uint8_t>(header + 17);
  if (code < 1 || code > 8) refuse(fmt::format("has token type {}; must be from 1 to 8", code));
  type_ = static_cast<TokenType>(code);
  const uint64_t sequences = load<uint64_t>(header + 18);
  const uint64_t entries = load<uint64_t>(header + 26);
  const uint64_t room = static_cast<uint64_t>(idx_.size() - kHeaderBytes);
  if (sequences > room / 12 || entries > (room - 12 * sequences) / 8) {
    refuse(fmt::format(
        "declares {} sequences and {} document entries but has only {} bytes; the file is truncated or damaged",
        sequences, entries, idx_.size()));
  }
  const uint64_t left = room - 12 * sequences - 8 * entries;
  if (left != 0 && left != sequences) {
    refuse(fmt::format("has {} unexpected bytes after its {} sequences and {} document entries", left, sequences,
                       entries));
  }
  sequences_ = static_cast<int64_t>(sequences);
  entries_ = static_cast<int64_t>(entries);
}

int32_t IndexedDataset::length(int64_t sequence) const {
  return load<int32_t>(idx_.data() + kHeaderBytes + 4 * sequence);
}

int64_t IndexedDataset::offset(int64_t sequence) const {
  return load<int64_t>(idx_.data() + kHeaderBytes + 4 * sequences_ + 8 * sequence);
}

void IndexedDataset::check_sequences() {
  const int64_t token_bytes = size_of(type_);
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t tokens = length(i), begin = offset(i);
    if (tokens < 0) refuse(fmt::format("sequence {} has length {}", i, tokens));
    // tokens < 2^31 and a token has at most 8 bytes, so the product cannot overflow.
    if (begin < 0 || begin > bin_.size() || tokens * token_bytes > bin_.size() - begin) {
      refuse(fmt::format(
          "sequence {} is {} tokens ({}) at byte {}, but {} has {} bytes; one of the two files is truncated or damaged",
          i, tokens, to_string(type_), begin, bin_.path(), bin_.size()));
    }
    tokens_ += tokens;  // cannot overflow with fewer than 2^32 sequences (51 GB of index)
  }
}

void IndexedDataset::read_document_starts() {
  if (entries_ < 1) refuse("has no document entries; there must be at least the initial 0");
  document_starts_.resize(static_cast<size_t>(entries_));
  std::memcpy(document_starts_.data(), idx_.data() + kHeaderBytes + 12 * sequences_, static_cast<size_t>(entries_) * 8);
  if (document_starts_.front() != 0 || document_starts_.back() != sequences_) {
    refuse(fmt::format("documents begin at {} and end at {}; must be 0 and the number of sequences, {}",
                       document_starts_.front(), document_starts_.back(), sequences_));
  }
  const auto wrong = std::adjacent_find(document_starts_.begin(), document_starts_.end(), std::greater<>());
  if (wrong != document_starts_.end()) {
    refuse(fmt::format("document {} begins at sequence {}, after its end {}", wrong - document_starts_.begin(),
                       wrong[0], wrong[1]));
  }
}

std::span<const char> IndexedDataset::bytes(int64_t sequence) const {
  return {bin_.data() + offset(sequence), static_cast<size_t>(length(sequence) * size_of(type_))};
}

void IndexedDataset::read(int64_t sequence, int64_t first, int64_t count, int64_t* out) const {
  const char* const begin = bytes(sequence).data();
  with_type(type_, [&](auto* of) {
    using Value = std::remove_pointer_t<decltype(of)>;
    const char* const from = begin + first * static_cast<int64_t>(sizeof(Value));
    for (int64_t i = 0; i < count; ++i) {
      const Value value = load<Value>(from + i * static_cast<int64_t>(sizeof(Value)));
      if constexpr (std::is_floating_point_v<Value>) {
        if (!is_whole(static_cast<double>(value))) {
          throw ConfigError(fmt::format("{}, position {}: {} is not a token id", place(sequence), first + i, value));
        }
      }
      out[i] = static_cast<int64_t>(value);
    }
  });
}

std::string IndexedDataset::place(int64_t sequence) const {
  const auto after = std::upper_bound(document_starts_.begin(), document_starts_.end(), sequence);
  const int64_t document = after - document_starts_.begin() - 1, within = sequence - after[-1];
  if (*after - after[-1] == 1) return fmt::format("{}, document {}", name(), document);
  return fmt::format("{}, document {}, its sequence {}", name(), document, within);
}

IndexedWriter::IndexedWriter(const std::string& prefix, TokenType type)
    : prefix_(prefix), type_(type), bin_(prefix + ".bin"), idx_(prefix + ".idx") {
  size_of(type);  // throws for an unknown type
}

void IndexedWriter::add_sequence(std::span<const int64_t> ids) {
  if (ids.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw ConfigError(
        fmt::format("a sequence of {} tokens does not fit into {}; must be <= 2^31 - 1", ids.size(), prefix_));
  }
  with_type(type_, [&](auto* of) {
    using Value = std::remove_pointer_t<decltype(of)>;
    scratch_.resize(ids.size() * sizeof(Value));
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!fits<Value>(ids[i])) {
        throw ConfigError(
            fmt::format("token id {} does not fit into the token type {} of {}", ids[i], to_string(type_), prefix_));
      }
      const Value value = static_cast<Value>(ids[i]);
      std::memcpy(scratch_.data() + i * sizeof(Value), &value, sizeof(Value));
    }
  });
  bin_.write(scratch_.data(), scratch_.size());
  lengths_.push_back(static_cast<int32_t>(ids.size()));
  tokens_ += static_cast<int64_t>(ids.size());
}

void IndexedWriter::end_document() { document_starts_.push_back(static_cast<int64_t>(lengths_.size())); }

void IndexedWriter::append(const IndexedDataset& other) {
  if (other.type() != type_) {
    throw ConfigError(fmt::format("{} has token type {} and cannot be appended to token type {} of {}", other.name(),
                                  to_string(other.type()), to_string(type_), prefix_));
  }
  const int64_t before = static_cast<int64_t>(lengths_.size());
  for (int64_t i = 0; i < other.size(); ++i) {
    const std::span<const char> bytes = other.bytes(i);
    bin_.write(bytes.data(), bytes.size());
    lengths_.push_back(other.length(i));
  }
  tokens_ += other.tokens();
  for (const int64_t start : other.document_starts().subspan(1)) document_starts_.push_back(before + start);
}

void IndexedWriter::write_index() {
  const auto put = [&](auto value) { idx_.write(&value, sizeof value); };
  idx_.write(kMagic);
  put(kVersion);
  put(static_cast<uint8_t>(type_));
  put(static_cast<uint64_t>(lengths_.size()));
  put(static_cast<uint64_t>(document_starts_.size()));
  idx_.write(lengths_.data(), lengths_.size() * sizeof(int32_t));
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    put(offset);
    offset += length * size_of(type_);
  }
  idx_.write(document_starts_.data(), document_starts_.size() * sizeof(int64_t));
}

void IndexedWriter::finish() {
  write_index();
  bin_.sync();
  idx_.sync();
  bin_.publish();
  idx_.publish();
}

}  // namespace concord
