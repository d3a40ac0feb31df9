#include "trainer/data/build/synthetic.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

#include "core/base/config_error.h"
#include "trainer/data/sources/indexed_dataset.h"
#include "trainer/data/text/tokenizer.h"
#include "trainer/data/text/tokenizer_files.h"

namespace concord {
namespace {

constexpr std::string_view kTextLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .";
constexpr size_t kStates = kTextLetters.size();
constexpr size_t kFollowers = 8;  // letters that may follow a letter

// Probabilities are integer multiples of 2^-16, so that sampling is exact and the same everywhere.
constexpr uint32_t kWhole = 1 << 16;
using Row = std::array<uint32_t, kStates>;

struct Chain {
  std::array<Row, kStates> rows = {};
  double probability(size_t from, size_t to) const { return static_cast<double>(rows[from][to]) / kWhole; }
};

// Each letter is followed by the next one in the alphabet (so that the chain reaches every letter) and by seven others,
// with a bias towards early letters. Weights decrease geometrically at a rate that differs per letter: some letters are
// easier to predict than others, and some are more frequent.
Chain draw_chain(std::mt19937_64& random) {
  Chain chain;
  for (size_t from = 0; from < kStates; ++from) {
    uint32_t left = kWhole;
    const uint32_t eighths = static_cast<uint32_t>(2 + random() % 4);  // eighths of the remainder for each follower
    for (size_t i = 0; i < kFollowers; ++i) {
      const size_t to = i == 0 ? (from + 1) % kStates : std::min(random() % kStates, random() % kStates);
      const uint32_t part = i + 1 == kFollowers ? left : left * eighths / 8;
      chain.rows[from][to] += part;  // a letter drawn twice gets the sum
      left -= part;
    }
  }
  return chain;
}

// Power iteration. The chain is irreducible (the ring), and averaging two steps makes it aperiodic with the same
// solution.
std::array<double, kStates> stationary(const Chain& chain) {
  std::array<double, kStates> now = {};
  now.fill(1.0 / static_cast<double>(kStates));
  for (double change = 1; change > 1e-15;) {
    std::array<double, kStates> next = {};
    for (size_t from = 0; from < kStates; ++from) {
      for (size_t to = 0; to < kStates; ++to) next[to] += now[from] * chain.probability(from, to);
    }
    change = 0;
    for (size_t i = 0; i < kStates; ++i) {
      next[i] = (next[i] + now[i]) / 2;
      change = std::max(change, std::abs(next[i] - now[i]));
    }
    now = next;
  }
  return now;
}

double entropy_term(double probability) { return probability > 0 ? -probability * std::log(probability) : 0; }

SyntheticCorpus entropies(const Chain& chain, const std::array<double, kStates>& distribution) {
  SyntheticCorpus corpus{.vocab_size = ByteTokenizer::kVocabSize};
  for (size_t from = 0; from < kStates; ++from) {
    corpus.unigram_entropy += entropy_term(distribution[from]);
    for (size_t to = 0; to < kStates; ++to)
      corpus.entropy_rate += distribution[from] * entropy_term(chain.probability(from, to));
  }
  return corpus;
}

size_t draw(const Row& row, std::mt19937_64& random) {
  uint32_t point = static_cast<uint32_t>(random() >> 48);  // 16 bits
  size_t letter = 0;
  while (point >= row[letter]) point -= row[letter++];
  return letter;
}

size_t draw_first(const std::array<double, kStates>& distribution, std::mt19937_64& random) {
  double point = static_cast<double>(random() >> 11) * 0x1p-53;
  size_t letter = 0;
  while (letter + 1 < kStates && point >= distribution[letter]) point -= distribution[letter++];
  return letter;
}

}  // namespace

SyntheticCorpus write_synthetic_corpus(const std::string& prefix, uint64_t seed, int64_t tokens) {
  if (tokens < 2 || tokens > std::numeric_limits<int32_t>::max()) {
    throw ConfigError(fmt::format("requested a synthetic corpus of {} tokens; must be from 2 to 2^31 - 1", tokens));
  }
  std::mt19937_64 random(seed);
  const Chain chain = draw_chain(random);
  const std::array<double, kStates> distribution = stationary(chain);
  std::vector<int64_t> ids(static_cast<size_t>(tokens));
  size_t letter = draw_first(distribution, random);
  for (int64_t& id : ids) {
    id = static_cast<uint8_t>(kTextLetters[letter]);
    letter = draw(chain.rows[letter], random);
  }
  IndexedWriter writer(prefix, token_type_for(ByteTokenizer::kVocabSize));
  writer.add_sequence(ids);
  writer.end_document();
  write_tokenizer_files(prefix, tokenizer_files("byte"));
  writer.finish();
  return entropies(chain, distribution);
}

}  // namespace concord
