#include "trainer/data/text/pair_reader.h"

#include <utility>

namespace concord {

void PairReader::add(JsonRecord record, int64_t line) {
  if (record.text.empty()) {
    finish();  // keeps the pairs in the order of lines
    return each_({std::move(record.tokens), std::move(record.rejected_tokens), record.margin}, line);
  }
  if (!samples_) {
    const auto add = [this](const TokensAndLabels& tokens, int64_t number) { add_half(tokens, number); };
    samples_.emplace(tokenizer_(), add, refuse_);
  }
  margins_.push_back(record.margin);
  samples_->add(std::move(record.text), line);
  samples_->add(std::move(record.rejected_text), line);
}

void PairReader::add_half(const TokensAndLabels& tokens, int64_t line) {
  if (!chosen_) {
    chosen_ = tokens;
    return;
  }
  each_({*std::exchange(chosen_, std::nullopt), tokens, margins_.front()}, line);
  margins_.pop_front();
}

void PairReader::finish() {
  if (samples_) samples_->finish();
}

}  // namespace concord
