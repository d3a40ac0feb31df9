// Which token comes next: a pure function of the logits, the settings and a random number, on the host, so that it is
// the same for every layout and vendor that has the same logits. Threads: any.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace concord {

// Named and meant as in transformers. Applied in this order: temperature, top_k, top_p.
struct SamplingOptions {
  double temperature = 0;  // 0: greedy, the most probable token
  int64_t top_k = 0;       // of the k most probable tokens only, and of those as probable as the last; 0: all
  double top_p = 1;        // of the most probable tokens that have this share of the probability together, at least one
  int64_t seed = 42;

  bool is_greedy() const { return temperature == 0; }
  bool operator==(const SamplingOptions&) const = default;
};

// Throws ConfigError, with the value and what is allowed.
void check_sampling(const SamplingOptions& options);

// The tokens that may come next with their probabilities, by ascending id; their sum is 1. Not for greedy options.
std::vector<std::pair<int64_t, double>> token_probabilities(std::span<const float> logits,
                                                            const SamplingOptions& options);

// |uniform| in [0, 1): the first token, in the order of ids, at which the sum of probabilities exceeds it. Greedy: the
// largest logit, the lowest id of equal ones.
int64_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

// The random number for token |position| of what is generated for prompt |prompt|, a function of the seed and these two
// (platform/cpp/random_word.hpp): it depends neither on the layout nor on which prompts share a batch.
double sampling_uniform(int64_t seed, int64_t prompt, int64_t position);

}  // namespace concord
