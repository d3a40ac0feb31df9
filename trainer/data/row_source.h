// Samples that come one by one: lines of a .jsonl, rows of a .safetensors.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/sample_source.h"
#include "trainer/data/text/pair_reader.h"
#include "trainer/data/text/tokenizer.h"

namespace concord {

// All samples in memory, 8 bytes per token.
class RowSource : public SampleSource {
 public:
  RowSource(std::string file, const DataArguments& arguments);
  // |place| ("line 7") is for messages. Cuts rows as cutoff_len and truncation say; a row (or piece) with nothing left
  // to learn is dropped. Throws ConfigError for ids outside of the vocabulary and rows that are too long.
  void add(const TokensAndLabels& tokens, const std::string& place);
  // Two rows; both are dropped where one is.
  void add(const PairReader::Pair& pair, const std::string& place);
  // Throws ConfigError if there is no sample.
  void finish();

  int64_t size() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t length(int64_t index) const override;
  Sample at(int64_t index) const override;
  DataIdentity identity() const override;
  std::string cut_text() const override;
  const std::string& name() const override { return file_; }

 private:
  struct Part {
    size_t begin, end;
  };
  // What is left of a row; nothing: it is dropped.
  std::optional<Part> kept_of(const TokensAndLabels& tokens, const std::string& place) const;
  void add_pieces(const TokensAndLabels& tokens, const std::string& place);
  void append(const TokensAndLabels& tokens, const Part& part, const std::string& place);

  std::string file_;
  int64_t group_;  // rows of a sample
  int64_t cutoff_len_;
  std::string truncation_;
  int64_t cut_ = 0, dropped_ = 0;  // samples
  int64_t pieces_ = 0;             // that were made of those that were cut
  int64_t vocab_size_;
  int64_t longest_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> labels_;
  std::vector<int64_t> begins_ = {0};
  std::vector<double> margins_;  // of pairs
};

std::unique_ptr<SampleSource> open_jsonl(const DataArguments& arguments);
// Of a text with a record per line; arguments.path is for messages.
std::unique_ptr<SampleSource> open_lines(std::string_view text, const DataArguments& arguments);
std::unique_ptr<SampleSource> open_text(const DataArguments& arguments);
std::unique_ptr<SampleSource> open_safetensors(const DataArguments& arguments);

}  // namespace concord
