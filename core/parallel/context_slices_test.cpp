#include "core/parallel/context_slices.h"

#include <gmock/gmock.h>

#include <set>
#include <utility>

#include "core/base/config_error.h"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> tokens_of(std::span<const int64_t> lengths, int64_t cp, int64_t rank) {
  std::vector<int64_t> tokens;
  for (const TokenRun& run : context_slices(lengths, cp, rank)) {
    for (int64_t i = 0; i < run.count; ++i) tokens.push_back(run.begin + i);
  }
  return tokens;
}

TEST(ContextSlices, ARankTakesOneEarlyAndOneLateChunkOfEachSequence) {
  const std::vector<int64_t> one{16};
  EXPECT_THAT(context_slices(one, 2, 0), ElementsAre(TokenRun{0, 4}, TokenRun{12, 4}));
  EXPECT_THAT(context_slices(one, 2, 1), ElementsAre(TokenRun{4, 4}, TokenRun{8, 4}));
  const std::vector<int64_t> two{8, 4};
  EXPECT_THAT(context_slices(two, 2, 1), ElementsAre(TokenRun{2, 2}, TokenRun{4, 2}, TokenRun{9, 1}, TokenRun{10, 1}));
}

TEST(ContextSlices, EveryTokenIsOnOneRank) {
  const std::vector<int64_t> lengths{24, 48, 12};
  for (const int64_t cp : {1, 2, 3, 6}) {
    std::vector<int64_t> order = gathered_order(lengths, cp);
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < 84; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
}

TEST(ContextSlices, ALengthThatDoesNotDivideIsRefusedWithTheNumbers) {
  const std::vector<int64_t> lengths{16, 10};
  try {
    context_slices(lengths, 2, 0);
    FAIL() << "10 tokens were cut in 4";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("10 tokens under context parallelism over 2 ranks"));
    EXPECT_THAT(error.what(), HasSubstr("multiple of 4"));
  }
}

// Counts pairs of tokens: the blocks of all ranks cover exactly what a causal mask within each sequence allows.
TEST(RingBlocks, CoverWhatACausalMaskShowsOnceAndEvenly) {
  const std::vector<int64_t> lengths{24, 12};
  const auto sequence_of = [](int64_t token) { return token < 24 ? 0 : 1; };
  for (const int64_t cp : {1, 2, 3, 6}) {
    std::set<std::pair<int64_t, int64_t>> seen;
    for (int64_t rank = 0; rank < cp; ++rank) {
      const std::vector<int64_t> queries = tokens_of(lengths, cp, rank);
      int64_t work = 0;
      for (int64_t owner = 0; owner < cp; ++owner) {
        const std::vector<int64_t> keys = tokens_of(lengths, cp, owner);
        for (const RingBlock& block : ring_blocks(lengths, cp, rank, owner)) {
          for (int64_t q = 0; q < block.queries; ++q) {
            for (int64_t k = 0; k < (block.causal ? q + 1 : block.keys); ++k) {
              const auto pair =
                  std::pair(queries[static_cast<size_t>(block.query + q)], keys[static_cast<size_t>(block.key + k)]);
              EXPECT_TRUE(seen.insert(pair).second) << pair.first << " met " << pair.second << " twice";
              EXPECT_LE(pair.second, pair.first);
              EXPECT_EQ(sequence_of(pair.first), sequence_of(pair.second));
              ++work;
            }
          }
        }
      }
      EXPECT_EQ(work, (24 * 25 / 2 + 12 * 13 / 2) / cp) << "of rank " << rank << " of " << cp;
    }
    EXPECT_EQ(seen.size(), 24u * 25 / 2 + 12 * 13 / 2);
  }
}

}  // namespace
}  // namespace concord
