#include "trainer/data/sources/gpt_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/base/config_error.h"

namespace concord {

TextDocuments::TextDocuments(std::string file, Tokenizer& tokenizer)
    : file_(std::move(file)), encoder_(tokenizer, [this, &tokenizer](const std::vector<int64_t>& ids) {
        const int64_t line = lines_[begins_.size() - 1];
        if (ids.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
          throw ConfigError(fmt::format("{}, line {}: a document of {} tokens is too long; must be < 2^31 - 1", file_,
                                        line, ids.size()));
        }
        for (const int64_t id : ids) tokens_.push_back(static_cast<int32_t>(id));
        tokens_.push_back(static_cast<int32_t>(*tokenizer.end_of_document()));
        begins_.push_back(static_cast<int64_t>(tokens_.size()));
      }) {
  if (tokenizer.end_of_document()) return;
  throw ConfigError(
      fmt::format("{}: the tokenizer {} has no end-of-document token; tokenize the text first without one: concord "
                  "data build --append_eod false --input {} --tokenizer {} --output PREFIX",
                  file_, tokenizer.name(), file_, tokenizer.name()));
}

void TextDocuments::add(std::string text, int64_t line) {
  lines_.push_back(line);
  encoder_.add(std::move(text));
}

int32_t TextDocuments::length(int64_t sequence) const {
  const size_t i = static_cast<size_t>(sequence);
  return static_cast<int32_t>(begins_[i + 1] - begins_[i]);
}

void TextDocuments::read(int64_t sequence, int64_t first, int64_t count, int64_t* out) const {
  std::copy_n(tokens_.begin() + begins_[static_cast<size_t>(sequence)] + first, count, out);
}

std::string TextDocuments::place(int64_t sequence) const {
  return fmt::format("{}, line {} (document {})", file_, lines_[static_cast<size_t>(sequence)], sequence);
}

GptSource::GptSource(std::unique_ptr<Documents> documents, const DataArguments& arguments)
    : documents_(std::move(documents)),
      seq_length_(arguments.seq_length),
      vocab_size_(arguments.vocab_size),
      shuffled_(arguments.shuffle) {
  const std::vector<int32_t> lengths = documents_->lengths();
  if (std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) <= kCheckedAtOnce)
    check_all_ids(*documents_, vocab_size_);
  try {
    indices_ =
        build_gpt_indices(lengths, {arguments.seq_length, arguments.samples_wanted, arguments.seed, arguments.shuffle});
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", name(), error.what()));
  }
}

DataIdentity GptSource::identity() const {
  return {{"documents", std::to_string(documents_->size())},
          {"contents", fmt::format("{:016x}", content_hash(*documents_, kCheckedAtOnce))},
          {kEpochsShuffledTogether,
           fmt::format("{}{}", indices_.epochs, indices_.separate_final_epoch ? ", the last one apart" : "")}};
}

Sample GptSource::at(int64_t index) const {
  const size_t sample = indices_.shuffle_index[static_cast<size_t>(index)];
  const SampleStart begin = indices_.sample_index[sample], end = indices_.sample_index[sample + 1];
  std::vector<int64_t> tokens(static_cast<size_t>(seq_length_) + 1);
  int64_t* out = tokens.data();
  for (int32_t document = begin.document; document <= end.document; ++document) {
    const int64_t sequence = indices_.document_index[static_cast<size_t>(document)];
    const int64_t first = document == begin.document ? begin.offset : 0;
    const int64_t last = document == end.document ? end.offset + 1 : documents_->length(sequence);
    documents_->read(sequence, first, last - first, out);
    check_ids(*documents_, sequence, first, out, last - first, vocab_size_);
    out += last - first;
  }
  Sample result{.ids = {tokens.begin(), tokens.end() - 1}, .labels = std::move(tokens)};
  result.labels.erase(result.labels.begin());
  return result;
}

}  // namespace concord
