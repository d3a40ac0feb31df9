// A corpus of known entropy, so that the loss can be compared with its lower bound.
#pragma once

#include <cstdint>
#include <string>

namespace concord {

// All in nats per token.
struct SyntheticCorpus {
  double entropy_rate =
      0;  // entropy of the next token given the previous one: lower bound of any model's expected loss
  double unigram_entropy = 0;  // loss of the best model without context
  int64_t vocab_size = 0;      // ids are less than it (the byte tokenizer's)
};

// Writes PREFIX.bin, PREFIX.idx and PREFIX.tokenizer: one document of |tokens| letters (bytes), a stationary Markov
// chain of order 1 whose transition matrix is drawn from |seed|. The same bytes on every machine. The rate is exact:
// -sum_i p_i sum_j P_ij ln P_ij with p the stationary distribution. Throws ConfigError for fewer than 2 tokens, or if
// the files cannot be written.
SyntheticCorpus write_synthetic_corpus(const std::string& prefix, uint64_t seed, int64_t tokens);

}  // namespace concord
