// Samples the next token: a pure function of the logits, the options and a random number, on the host, so that every
// layout and vendor with the same logits gets the same token. Threads: any.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace concord {

// Options with the names and the meaning of transformers. Applied in this order: temperature, top_k, top_p.
struct SamplingOptions {
  double temperature = 0;  // 0: greedy, the most probable token
  int64_t top_k = 0;       // sample from the k most probable tokens and ties with the k-th; 0: all
  double top_p = 1;        // sample from the most probable tokens with at least this total probability
  int64_t seed = 42;

  bool is_greedy() const { return temperature == 0; }
  bool operator==(const SamplingOptions&) const = default;
};

// Throws ConfigError, with the value and the allowed range, unless all options are valid.
void check_sampling(const SamplingOptions& options);

// Returns the candidate tokens and their probabilities, by ascending id; the sum is 1. Not for greedy options.
std::vector<std::pair<int64_t, double>> token_probabilities(std::span<const float> logits,
                                                            const SamplingOptions& options);

// Returns the first token, by ascending id, at which the cumulative probability exceeds |uniform| in [0, 1). Greedy:
// the largest logit; ties are broken by the lowest id.
int64_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

// Returns the random number for generated token |position| of prompt |prompt| (platform/cpp/random_word.hpp). It
// depends neither on the layout nor on which prompts share a batch.
double sampling_uniform(int64_t seed, int64_t prompt, int64_t position);

}  // namespace concord
