// Individual samples: lines of a .jsonl, rows of a .safetensors.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/sources/sample_source.h"
#include "trainer/data/text/pair_reader.h"
#include "trainer/data/text/tokenizer.h"

namespace concord {

// All samples in memory, 8 bytes per token.
class RowSource : public SampleSource {
 public:
  RowSource(std::string file, const DataArguments& arguments);
  // |place| ("line 7") is used in messages. Truncates rows by cutoff_len and truncation; a row (or piece) without
  // trained tokens is dropped. Throws ConfigError for ids outside the vocabulary and rows that are too long.
  void add(const TokensAndLabels& tokens, const std::string& place);
  // Adds two rows; drops both if one is dropped.
  void add(const PairReader::Pair& pair, const std::string& place);
  void drop() { ++dropped_; }  // counts a sample that is longer than cutoff_len and is not added
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
  // Returns the kept part of a row; nullopt if it is dropped.
  std::optional<Part> kept_of(const TokensAndLabels& tokens, const std::string& place) const;
  void add_pieces(const TokensAndLabels& tokens, const std::string& place);
  void append(const TokensAndLabels& tokens, const Part& part, const std::string& place);

  std::string file_;
  int64_t group_;  // rows per sample
  int64_t cutoff_len_;
  Truncation truncation_;
  int64_t cut_ = 0, dropped_ = 0;  // samples
  int64_t pieces_ = 0;             // pieces of the samples that were split
  int64_t vocab_size_;
  int64_t longest_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> labels_;
  std::vector<int64_t> begins_ = {0};
  std::vector<double> margins_;  // margins of pairs
};

std::unique_ptr<SampleSource> open_jsonl(const DataArguments& arguments);
// Opens a text with one record per line; arguments.path is used in messages.
std::unique_ptr<SampleSource> open_lines(std::string_view all, const DataArguments& arguments);
std::unique_ptr<SampleSource> open_text(const DataArguments& arguments);
std::unique_ptr<SampleSource> open_safetensors(const DataArguments& arguments);

}  // namespace concord
