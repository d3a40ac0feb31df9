// Megatron's on-disk format: PREFIX.bin holds the tokens, PREFIX.idx the start of each sequence and document.
//
// .idx, little endian: "MMIDIDX\0\0", u64 version 1, u8 type, u64 sequences S, u64 entries D, i32[S] lengths, i64[S]
// byte offsets into .bin, i64[D] document starts (0 first, S last, so there are D - 1 documents); multimodal data has
// i8[S] modes after them, which are ignored here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/build/output_file.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/text/documents.h"

namespace concord {

// Megatron's type codes, as stored in the file.
enum class TokenType : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat64 = 6,
  kFloat32 = 7,
  kUint16 = 8,
};
const char* to_string(TokenType type);
int64_t size_of(TokenType type);  // bytes per token
// Returns Megatron's type for a vocabulary: uint16 below 65500 tokens, otherwise int32.
TokenType token_type_for(int64_t vocab_size);

// Maps both files and checks all of the index on construction; tokens are read on demand. Floating-point tokens are
// accepted if they are integers.
class IndexedDataset : public Documents {
 public:
  // Throws ConfigError for a missing, truncated or inconsistent file.
  explicit IndexedDataset(const std::string& prefix);

  TokenType type() const { return type_; }
  int64_t documents() const { return static_cast<int64_t>(document_starts_.size()) - 1; }
  std::span<const int64_t> document_starts() const { return document_starts_; }
  int64_t tokens() const { return tokens_; }
  // Returns a sequence's tokens as stored in the file.
  std::span<const char> bytes(int64_t sequence) const;

  int64_t size() const override { return sequences_; }
  int32_t length(int64_t sequence) const override;
  void read(int64_t sequence, int64_t first, int64_t count, int64_t* out) const override;
  std::string place(int64_t sequence) const override;
  const std::string& name() const override { return bin_.path(); }

 private:
  void read_header();
  void check_sequences();
  void read_document_starts();
  int64_t offset(int64_t sequence) const;
  [[noreturn]] void refuse(const std::string& why) const;

  MappedFile idx_;
  MappedFile bin_;
  TokenType type_ = TokenType::kInt32;
  int64_t sequences_ = 0;
  int64_t entries_ = 0;
  int64_t tokens_ = 0;
  std::vector<int64_t> document_starts_;
};

// Writes such a pair. Nothing exists under the final names before finish() has written everything; .idx is renamed
// last. Threads: one at a time.
class IndexedWriter {
 public:
  // Throws ConfigError if the folder cannot be written to.
  IndexedWriter(const std::string& prefix, TokenType type);

  // Throws ConfigError for an id that |type| cannot hold.
  void add_sequence(std::span<const int64_t> ids);
  void end_document();
  // Appends all documents of |other|, which has the same type.
  void append(const IndexedDataset& other);
  void finish();

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return static_cast<int64_t>(document_starts_.size()) - 1; }

 private:
  void write_index();

  std::string prefix_;
  TokenType type_;
  OutputFile bin_;
  OutputFile idx_;
  int64_t tokens_ = 0;
  std::vector<char> scratch_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> document_starts_ = {0};
};

}  // namespace concord
