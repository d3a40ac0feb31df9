#include "trainer/generation/sampling.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/config_error.h"
#include "core/base/stable_hash.h"
#include "platform/cpp/random_word.hpp"

namespace concord {
namespace {

using Candidates = std::vector<std::pair<int64_t, double>>;  // ids and, so far, scaled logits or weights

// Those at least as large as the k-th largest.
void keep_top_k(Candidates* candidates, int64_t k) {
  if (k <= 0 || k >= static_cast<int64_t>(candidates->size())) return;
  Candidates sorted = *candidates;
  const auto larger = [](const auto& a, const auto& b) { return a.second > b.second; };
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), larger);
  const double least = sorted[static_cast<size_t>(k - 1)].second;
  std::erase_if(*candidates, [&](const auto& each) { return each.second < least; });
}

double to_weights(Candidates* candidates) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const auto& each : *candidates) largest = std::max(largest, each.second);
  for (auto& each : *candidates) sum += each.second = std::exp(each.second - largest);
  return sum;
}

// A token stays unless it and all less probable ones have no more than 1 - p together.
void keep_top_p(Candidates* candidates, double p, double sum) {
  if (p >= 1) return;
  // Tokens that cannot stay: all below this together have less than that. What is left is few enough to sort.
  const double hopeless = (1 - p) * sum / static_cast<double>(candidates->size());
  double dropped = 0;
  std::erase_if(*candidates, [&](const auto& each) {
    if (each.second < hopeless) dropped += each.second;
    return each.second < hopeless;
  });
  std::sort(candidates->begin(), candidates->end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second < b.second : a.first > b.first;
  });
  size_t first = 0;
  while (first + 1 < candidates->size() && (dropped += (*candidates)[first].second) <= (1 - p) * sum) ++first;
  candidates->erase(candidates->begin(), candidates->begin() + static_cast<std::ptrdiff_t>(first));
  std::sort(candidates->begin(), candidates->end());
}

}  // namespace

void check_sampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    throw ConfigError(fmt::format("temperature is {}; must be 0 (greedy) or a positive number", options.temperature));
  }
  if (options.top_k < 0) throw ConfigError(fmt::format("top_k is {}; must be >= 1, or 0 for all", options.top_k));
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    throw ConfigError(fmt::format("top_p is {}; must be greater than 0 and at most 1", options.top_p));
  }
  if (options.seed <= 0) throw ConfigError(fmt::format("seed is {}; must be positive", options.seed));
  if (options.is_greedy() && (options.top_k > 0 || options.top_p < 1)) {
    throw ConfigError(
        "top_k and top_p choose among tokens at random, but temperature is 0 (greedy); set temperature "
        "to a positive number, for instance 1");
  }
}

Candidates token_probabilities(std::span<const float> logits, const SamplingOptions& options) {
  Candidates candidates;
  candidates.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates.emplace_back(static_cast<int64_t>(i), static_cast<double>(logits[i]) / options.temperature);
  }
  keep_top_k(&candidates, options.top_k);
  keep_top_p(&candidates, options.top_p, to_weights(&candidates));
  double sum = 0;
  for (const auto& each : candidates) sum += each.second;
  for (auto& each : candidates) each.second /= sum;
  return candidates;
}

int64_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  if (options.is_greedy()) return std::max_element(logits.begin(), logits.end()) - logits.begin();
  const Candidates candidates = token_probabilities(logits, options);
  double sum = 0;
  for (const auto& [id, probability] : candidates) {
    if ((sum += probability) > uniform) return id;
  }
  return candidates.back().first;  // rounding: the sum is a little less than 1
}

double sampling_uniform(int64_t seed, int64_t prompt, int64_t position) {
  constexpr uint64_t kStream = stable_hash("generate");
  const uint64_t bits = random_word(static_cast<uint64_t>(seed), kStream + static_cast<uint64_t>(prompt),
                                    static_cast<uint64_t>(position));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace concord
