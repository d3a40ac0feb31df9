// Pairs of lines to pairs of samples: both halves of a text are tokenized one after the other, many at a time. Threads:
// one at a time.
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
  // |each| gets the pairs in the order of add(). |tokenizer| is asked for once a text needs it; it outlives the reader.
  // |refuse| as in BatchedSamples.
  PairReader(std::function<Tokenizer&()> tokenizer, Each each, BatchedSamples::Refuse refuse)
      : tokenizer_(std::move(tokenizer)), each_(std::move(each)), refuse_(std::move(refuse)) {}
  PairReader(const PairReader&) = delete;
  PairReader& operator=(const PairReader&) = delete;

  void add(JsonRecord record, int64_t line);  // of kPair
  void finish();                              // tokenizes what is pending

 private:
  void add_half(const TokensAndLabels& tokens, int64_t line);

  std::function<Tokenizer&()> tokenizer_;
  Each each_;
  BatchedSamples::Refuse refuse_;
  std::optional<BatchedSamples> samples_;
  std::optional<TokensAndLabels> chosen_;  // that waits for the rejected one
  std::deque<double> margins_;             // of pairs that wait for their tokens
};

}  // namespace concord
