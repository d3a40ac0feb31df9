// Converts pairs of texts to pairs of samples: tokenizes both halves consecutively, many at a time. Threads: one at a
// time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "trainer/data/text/text_reader.h"
#include "trainer/data/text/tokenizer.h"

namespace concord {

class PairReader {
 public:
  struct Pair {
    TokensAndLabels chosen, rejected;
    double margin;
  };
  using Each = std::function<void(const Pair& pair, int64_t line)>;
  // |each| receives the pairs in the order of add(). |tokenizer| is called when a text needs it; its result must
  // outlive the reader. |refuse| as in BatchedSamples.
  PairReader(std::function<Tokenizer&()> tokenizer, Each each, BatchedSamples::Refuse refuse)
      : tokenizer_(std::move(tokenizer)), each_(std::move(each)), refuse_(std::move(refuse)) {}
  PairReader(const PairReader&) = delete;
  PairReader& operator=(const PairReader&) = delete;

  void add(JsonRecord record, int64_t line);  // of kind kPair
  void finish();                              // tokenizes pending texts

 private:
  void add_half(const TokensAndLabels& tokens, int64_t line);

  std::function<Tokenizer&()> tokenizer_;
  Each each_;
  BatchedSamples::Refuse refuse_;
  std::optional<BatchedSamples> samples_;
  std::optional<TokensAndLabels> chosen_;  // waiting for its rejected half
  std::deque<double> margins_;             // margins of pairs that are not tokenized yet
};

}  // namespace concord
