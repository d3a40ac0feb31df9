// Samples cut from a corpus: Megatron data, or text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/data/sources/gpt_indices.h"
#include "trainer/data/sources/sample_source.h"
#include "trainer/data/text/documents.h"
#include "trainer/data/text/tokenizer.h"

namespace concord {

// Tokenized text as documents in memory, 4 bytes per token.
class TextDocuments : public Documents {
 public:
  // |tokenizer| is used until finish(). Throws ConfigError if it has no end-of-document token.
  TextDocuments(std::string file, Tokenizer& tokenizer);
  TextDocuments(const TextDocuments&) = delete;
  TextDocuments& operator=(const TextDocuments&) = delete;
  // Adds |text| followed by the end-of-document token. Readable after finish().
  void add(std::string text, int64_t line);
  void finish() { encoder_.finish(); }

  int64_t size() const override { return static_cast<int64_t>(lines_.size()); }
  int32_t length(int64_t sequence) const override;
  void read(int64_t sequence, int64_t first, int64_t count, int64_t* out) const override;
  std::string place(int64_t sequence) const override;
  const std::string& name() const override { return file_; }

 private:
  std::string file_;
  BatchedEncoder encoder_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> begins_ = {0};
  std::vector<int64_t> lines_;
};

class GptSource : public SampleSource {
 public:
  // Ids of a corpus of up to this many tokens are checked on opening; otherwise when they are read.
  static constexpr int64_t kCheckedAtOnce = int64_t{1} << 26;

  GptSource(std::unique_ptr<Documents> documents, const DataArguments& arguments);

  int64_t size() const override { return static_cast<int64_t>(indices_.shuffle_index.size()); }
  int64_t length(int64_t) const override { return seq_length_; }
  Sample at(int64_t index) const override;
  bool is_shuffled() const override { return shuffled_; }
  bool joins_documents() const override { return true; }
  // Includes the number of epochs that the wanted samples take, since the documents of all of them are shuffled
  // together.
  DataIdentity identity() const override;
  const std::string& name() const override { return documents_->name(); }

 private:
  std::unique_ptr<Documents> documents_;
  int64_t seq_length_;
  int64_t vocab_size_;
  bool shuffled_;
  GptIndices indices_;
};

}  // namespace concord
