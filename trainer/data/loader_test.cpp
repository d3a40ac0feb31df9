#include "trainer/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>

#include "trainer/data/testing/folder.h"

namespace concord {
namespace {

using testing::config_error;
using ::testing::HasSubstr;

// Sample i is the token i + 1, length(i) times.
class Counting : public SampleSource {
 public:
  explicit Counting(int64_t size, int64_t longest = 1) : size_(size), longest_(longest) {}
  int64_t size() const override { return size_; }
  int64_t length(int64_t index) const override { return 1 + index * 7 % longest_; }
  Sample at(int64_t index) const override {
    ++reads;
    if (index == broken) throw ConfigError("sample 5 is broken");
    const std::vector<int64_t> tokens(static_cast<size_t>(length(index)), index + 1);
    return {tokens, tokens};
  }
  const std::string& name() const override { return name_; }

  mutable std::atomic<int64_t> reads = 0;
  int64_t broken = -1;

 private:
  int64_t size_;
  int64_t longest_;
  std::string name_ = "counting";
};

std::vector<int64_t> learnt(const std::vector<TokenBatch>& batch) {
  std::vector<int64_t> tokens;
  for (const TokenBatch& micro_batch : batch) {
    for (size_t i = 0; i < micro_batch.ids.size(); ++i) {
      if (micro_batch.labels[i] != kIgnoredToken) tokens.push_back(micro_batch.ids[i]);
    }
  }
  return tokens;
}

// Returns the tokens of each global batch over all ranks: micro-batch by micro-batch, rank by rank.
std::vector<std::vector<int64_t>> global_batches(DataArguments arguments, int64_t samples, int64_t steps,
                                                 int64_t longest = 1) {
  std::vector<std::unique_ptr<DataLoader>> ranks;
  for (arguments.dp_rank = 0; arguments.dp_rank < arguments.dp_size; ++arguments.dp_rank) {
    ranks.push_back(std::make_unique<DataLoader>(arguments, std::make_unique<Counting>(samples, longest)));
  }
  std::vector<std::vector<int64_t>> result;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<std::vector<TokenBatch>> batches;
    for (auto& rank : ranks) {
      auto batch = rank->next();
      if (!batch) return result;
      batches.push_back(std::move(*batch));
    }
    auto& tokens = result.emplace_back();
    for (size_t m = 0; m < static_cast<size_t>(arguments.accumulation); ++m) {
      for (auto& batch : batches) {
        const std::vector<int64_t> part = learnt({batch[m]});
        tokens.insert(tokens.end(), part.begin(), part.end());
      }
    }
  }
  return result;
}

TEST(DataLoader, UnshuffledBatchesAreTheSamplesInOrder) {
  const auto batches =
      global_batches({.micro_batch_size = 2, .accumulation = 2, .shuffle = false, .epochs = 1}, 11, 99);
  EXPECT_EQ(batches, (std::vector<std::vector<int64_t>>{{1, 2, 3, 4}, {5, 6, 7, 8}}));
}

TEST(DataLoader, EveryLayoutReadsTheSameGlobalBatches) {
  const auto expected = global_batches({.micro_batch_size = 12, .epochs = 3}, 50, 99);
  EXPECT_EQ(expected.size(), 12U);
  for (const auto& [size, accumulation, ranks] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {1, 12, 1}, {1, 1, 12}, {2, 3, 2}, {3, 2, 2}, {6, 1, 2}, {1, 4, 3}}) {
    const DataArguments arguments{
        .micro_batch_size = size, .accumulation = accumulation, .dp_size = ranks, .epochs = 3};
    EXPECT_EQ(global_batches(arguments, 50, 99), expected) << size << " x " << accumulation << " x " << ranks;
  }
}

TEST(DataLoader, AnEpochHoldsEverySampleOnceAndTheNextAnotherOrder) {
  const auto batches = global_batches({.micro_batch_size = 5, .epochs = 2}, 25, 99);
  ASSERT_EQ(batches.size(), 10U);
  std::vector<std::vector<int64_t>> epochs(2);
  for (size_t i = 0; i < 10; ++i) epochs[i / 5].insert(epochs[i / 5].end(), batches[i].begin(), batches[i].end());
  EXPECT_NE(epochs[0], epochs[1]);
  std::vector<int64_t> all(25);
  std::iota(all.begin(), all.end(), 1);
  for (auto& epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(epoch, all);
  }
}

TEST(DataLoader, TheLastBatchIsFilledUpWithRowsThatCountNothingWhereItIsKept) {
  for (const int64_t ranks : {1, 2, 4}) {
    const DataArguments arguments{.micro_batch_size = 4 / ranks,
                                  .accumulation = 2,
                                  .dp_size = ranks,
                                  .shuffle = false,
                                  .drop_last = false,
                                  .epochs = 1};
    const auto batches = global_batches(arguments, 9, 99);
    EXPECT_EQ(batches, (std::vector<std::vector<int64_t>>{{1, 2, 3, 4, 5, 6, 7, 8}, {9}}));
  }
}

TEST(DataLoader, RowsOfAMicroBatchAreAsLongAsItsLongestRoundedUp) {
  DataLoader loader({.micro_batch_size = 4, .shuffle = false, .pad_multiple = 4, .pad_id = 99},
                    std::make_unique<Counting>(8, 5));
  const TokenBatch batch = loader.next()->front();  // lengths 1, 3, 5, 2
  EXPECT_EQ(batch.rows, 4);
  EXPECT_EQ(batch.columns, 8);
  EXPECT_EQ(std::vector<int64_t>(batch.ids.begin() + 8, batch.ids.begin() + 16),
            (std::vector<int64_t>{2, 2, 2, 99, 99, 99, 99, 99}));
  EXPECT_EQ(std::count(batch.labels.begin(), batch.labels.end(), kIgnoredToken), 32 - 11);
  EXPECT_TRUE(batch.cu_seqlens.empty());
}

TEST(DataLoader, ACollatorMakesTheBatchesAndIsChecked) {
  const DataArguments arguments{.micro_batch_size = 2, .shuffle = false, .drop_last = false};
  std::vector<size_t> sizes;
  int64_t columns = 3;
  const DataCollator collate = [&](const std::vector<Sample>& samples, int64_t rows) {
    sizes.push_back(samples.size());
    TokenBatch batch{.rows = rows,
                     .columns = columns,
                     .ids = std::vector<int64_t>(6, 7),
                     .labels = {},
                     .position_ids = {},
                     .cu_seqlens = {}};
    batch.labels.resize(6, kIgnoredToken);
    batch.labels[0] = samples[0].ids[0];
    return batch;
  };
  {
    DataLoader loader(arguments, std::make_unique<Counting>(3), collate);
    for (const int64_t first : {1, 3}) EXPECT_EQ(loader.next()->front().labels[0], first);
  }
  EXPECT_THAT(std::vector<size_t>(sizes.begin(), sizes.begin() + 2), ::testing::ElementsAre(2, 1));
  columns = 2;
  DataLoader wrong(arguments, std::make_unique<Counting>(3), collate);
  EXPECT_THAT(config_error([&] { wrong.next(); }), HasSubstr("2 rows and 2 columns with 6 ids"));
  DataArguments packed = arguments;
  packed.packing = true;
  packed.seq_length = 4;
  EXPECT_THAT(config_error([&] { DataLoader(packed, std::make_unique<Counting>(3), collate); }),
              HasSubstr("a data collator with sequence_packing, preferences or"));
}

TEST(DataLoader, PackedEpochsHoldEveryTokenOnce) {
  for (const int64_t ranks : {1, 3}) {
    const DataArguments arguments{.seq_length = 32,
                                  .micro_batch_size = 6 / ranks,
                                  .dp_size = ranks,
                                  .drop_last = false,
                                  .epochs = 1,
                                  .packing = true,
                                  .pad_multiple = 4};
    std::map<int64_t, int64_t> counts;
    for (const auto& batch : global_batches(arguments, 100, 99, 30)) {
      for (const int64_t token : batch) ++counts[token];
    }
    const Counting source(100, 30);
    ASSERT_EQ(counts.size(), 100U);
    for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(counts[i + 1], source.length(i));
  }
}

TEST(DataLoader, PackedBatchesAreTheSameForEveryLayout) {
  const DataArguments one{.seq_length = 16, .micro_batch_size = 6, .epochs = 1, .packing = true};
  DataArguments many = one;
  many.micro_batch_size = 1;
  many.accumulation = 3;
  many.dp_size = 2;
  EXPECT_EQ(global_batches(many, 100, 99, 15), global_batches(one, 100, 99, 15));
}

std::vector<std::vector<TokenBatch>> rest(DataLoader& loader, size_t most = 1000) {
  std::vector<std::vector<TokenBatch>> batches;
  while (batches.size() < most) {
    auto batch = loader.next();
    if (!batch) break;
    batches.push_back(std::move(*batch));
  }
  return batches;
}

TEST(DataLoader, ARestoredLoaderContinuesWithTheSameBatches) {
  for (const bool packing : {false, true}) {
    const DataArguments arguments{
        .seq_length = 12, .micro_batch_size = 2, .accumulation = 2, .epochs = 3, .packing = packing};
    DataLoader whole(arguments, std::make_unique<Counting>(40, 9));
    const size_t total = rest(whole).size();
    for (size_t stop = 0; stop <= total; ++stop) {
      DataLoader first(arguments, std::make_unique<Counting>(40, 9));
      EXPECT_EQ(rest(first, stop).size(), stop);
      DataLoader second(arguments, std::make_unique<Counting>(40, 9));
      second.restore(first.position());
      EXPECT_EQ(second.position(), first.position());
      EXPECT_EQ(rest(second), rest(first)) << "after " << stop;
    }
  }
}

TEST(DataLoader, ThePositionIsThatOfWhatWasTakenNotOfWhatWasMadeAhead) {
  const DataArguments arguments{.micro_batch_size = 3, .epochs = 2, .prefetch = 8};
  DataLoader loader(arguments, std::make_unique<Counting>(10));
  EXPECT_EQ(loader.position().sample, 0);
  loader.next();
  EXPECT_EQ(loader.position().sample, 3);
  loader.next();
  loader.next();  // the tenth sample does not fill a batch
  EXPECT_EQ(loader.position().epoch, 1);
  EXPECT_EQ(loader.position().sample, 0);
  rest(loader);
  EXPECT_EQ(loader.position().epoch, 2);
}

TEST(DataLoader, ALoaderCanGoBackWhileItRuns) {
  DataLoader loader({.micro_batch_size = 4}, std::make_unique<Counting>(100));
  const DataPosition begin = loader.position();
  const auto first = rest(loader, 30);
  loader.restore(begin);
  EXPECT_EQ(rest(loader, 30), first);
}

TEST(DataLoader, PositionsOfOtherDataOrOrdersAreRefused) {
  const DataArguments arguments{.micro_batch_size = 2};
  DataLoader loader(arguments, std::make_unique<Counting>(10));
  loader.next();
  const DataPosition position = loader.position();
  DataArguments other_seed = arguments;
  other_seed.seed = 7;
  DataLoader seed(other_seed, std::make_unique<Counting>(10));
  EXPECT_THAT(config_error([&] { seed.restore(position); }), HasSubstr("other data or another sample order"));
  DataLoader size(arguments, std::make_unique<Counting>(11));
  EXPECT_THAT(config_error([&] { size.restore(position); }), HasSubstr("other data or another sample order"));
  DataArguments packed = arguments;
  packed.packing = true;
  packed.seq_length = 100;
  DataLoader first_fit(packed, std::make_unique<Counting>(200));
  packed.packing_strategy = PackingStrategy::best_fit;
  DataLoader best_fit(packed, std::make_unique<Counting>(200));
  EXPECT_THAT(config_error([&] { best_fit.restore(first_fit.position()); }),
              HasSubstr("other data or another sample order"));
  EXPECT_THAT(config_error([&] { loader.restore({0, 100, position.fingerprint}); }),
              HasSubstr("cannot resume from epoch 0, sample 100"));
  EXPECT_THAT(config_error([&] { loader.restore({-1, 0, position.fingerprint}); }),
              HasSubstr("cannot resume from epoch -1"));
}

// The order of these samples does not depend on their number: a run may be made longer.
TEST(DataLoader, APositionFitsARunThatWantsMoreSamples) {
  DataLoader shorter({.micro_batch_size = 2, .samples_wanted = 4}, std::make_unique<Counting>(10));
  rest(shorter, 2);
  DataLoader longer({.micro_batch_size = 2, .samples_wanted = 8}, std::make_unique<Counting>(10));
  longer.restore(shorter.position());
  EXPECT_EQ(learnt(*longer.next()), learnt(*shorter.next()));
}

TEST(DataLoader, APositionFitsAnotherLayoutOfTheSameBatch) {
  DataLoader one({.micro_batch_size = 4}, std::make_unique<Counting>(20));
  rest(one, 2);
  DataLoader rank({.micro_batch_size = 1, .accumulation = 2, .dp_rank = 1, .dp_size = 2},
                  std::make_unique<Counting>(20));
  rank.restore(one.position());
  const std::vector<int64_t> global = learnt(*one.next());
  EXPECT_EQ(learnt(*rank.next()), (std::vector<int64_t>{global[1], global[3]}));
}

TEST(DataLoader, NoMoreThanAskedForIsMadeAhead) {
  auto source = std::make_unique<Counting>(1000);
  const Counting& counting = *source;
  DataLoader loader({.micro_batch_size = 1, .prefetch = 3}, std::move(source));
  for (int i = 0; i < 10; ++i) loader.next();
  // Taken, waiting, and the one in the thread's hand.
  EXPECT_LE(counting.reads, 10 + 3 + 1);
}

TEST(DataLoader, WhatTheThreadThrowsComesOutOfNextAfterTheGoodBatches) {
  auto source = std::make_unique<Counting>(10);
  source->broken = 5;
  DataLoader loader({.micro_batch_size = 2, .shuffle = false}, std::move(source));
  EXPECT_EQ(learnt(*loader.next()), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(learnt(*loader.next()), (std::vector<int64_t>{3, 4}));
  for (int again = 0; again < 2; ++again) EXPECT_EQ(config_error([&] { loader.next(); }), "sample 5 is broken");
  EXPECT_EQ(loader.position().sample, 4);
}

TEST(DataLoader, TheEndStaysTheEnd) {
  DataLoader loader({.epochs = 1}, std::make_unique<Counting>(2));
  EXPECT_EQ(rest(loader).size(), 2U);
  EXPECT_FALSE(loader.next().has_value());
  EXPECT_FALSE(loader.next().has_value());
}

// With a source that outlives none of its loader: the thread has let go of it, whether it had begun to read or not.
class Held : public Counting {
 public:
  explicit Held(std::shared_ptr<int> token) : Counting(100), token_(std::move(token)) {}

 private:
  std::shared_ptr<int> token_;
};

TEST(DataLoader, ALoaderThatNobodyReadsEnds) {
  const auto token = std::make_shared<int>();
  for (int i = 0; i < 20; ++i) {
    DataLoader loader({.prefetch = 2}, std::make_unique<Held>(token));
    if (i % 2 == 0) loader.next();
    EXPECT_EQ(token.use_count(), 2);
  }
  EXPECT_EQ(token.use_count(), 1);
}

TEST(DataLoader, CountsAreThoseOfAnEpoch) {
  const DataLoader loader({.micro_batch_size = 2, .accumulation = 2, .dp_size = 2}, std::make_unique<Counting>(20));
  EXPECT_EQ(loader.global_batch_size(), 8);
  EXPECT_EQ(loader.samples(), 20);
  EXPECT_EQ(loader.batches(0), 2);
  const DataLoader kept({.micro_batch_size = 8, .drop_last = false}, std::make_unique<Counting>(20));
  EXPECT_EQ(kept.batches(0), 3);
}

TEST(DataLoader, ArgumentsThatCannotBeAreRefused) {
  const auto said = [](DataArguments arguments) {
    return config_error([&] { DataLoader(arguments, std::make_unique<Counting>(10)); });
  };
  EXPECT_THAT(said({.micro_batch_size = 0}), HasSubstr("micro_batch_size is 0"));
  EXPECT_THAT(said({.accumulation = -1}), HasSubstr("accumulation is -1"));
  EXPECT_THAT(said({.dp_rank = 2, .dp_size = 2}), HasSubstr("dp_rank is 2"));
  EXPECT_THAT(said({.pad_multiple = 0}), HasSubstr("pad_multiple"));
  EXPECT_THAT(said({.prefetch = 0}), HasSubstr("prefetch"));
  EXPECT_THAT(said({.packing = true}), HasSubstr("seq_length"));
  EXPECT_THAT(said({.micro_batch_size = int64_t{1} << 31, .accumulation = int64_t{1} << 31}),
              HasSubstr("more than 2^31"));
  EXPECT_THAT(said({.micro_batch_size = 11}), HasSubstr("counting has 10 samples, fewer than one global batch of 11"));
}

// Samples 2i and 2i + 1, tokens 2i + 1 and 2i + 2, are pair i.
void expect_pairs(const TokenBatch& batch, const std::vector<int64_t>& firsts) {
  ASSERT_EQ(batch.samples.size() * 2, firsts.size());
  for (size_t i = 0; i < batch.samples.size(); ++i) {
    EXPECT_EQ(firsts[2 * i], batch.samples[i] < 0 ? 0 : 2 * batch.samples[i] + 1) << i;
    EXPECT_EQ(firsts[2 * i + 1], batch.samples[i] < 0 ? 0 : 2 * batch.samples[i] + 2) << i;
  }
}

TEST(DataLoader, PairsAreNeverPutApart) {
  DataArguments arguments{.micro_batch_size = 2, .accumulation = 2, .dp_size = 2, .drop_last = false, .pairs = true};
  std::vector<int64_t> seen;
  for (arguments.dp_rank = 0; arguments.dp_rank < 2; ++arguments.dp_rank) {
    DataLoader loader(arguments, std::make_unique<Counting>(2 * 11, 5));
    EXPECT_EQ(loader.samples(), 11);
    EXPECT_EQ(loader.batches(0), 2);
    for (int step = 0; step < 2; ++step) {
      const std::vector<TokenBatch> batches = *loader.next();
      for (const TokenBatch& batch : batches) {
        EXPECT_EQ(batch.rows, 4);
        std::vector<int64_t> firsts;
        for (size_t row = 0; row < 4; ++row) firsts.push_back(batch.ids[row * static_cast<size_t>(batch.columns)]);
        expect_pairs(batch, firsts);
        seen.insert(seen.end(), batch.samples.begin(), batch.samples.end());
      }
    }
  }
  std::erase(seen, -1);
  std::ranges::sort(seen);
  std::vector<int64_t> all(11);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
}

TEST(DataLoader, PackedPairsFollowEachOther) {
  const DataArguments arguments{
      .seq_length = 24, .micro_batch_size = 1, .drop_last = false, .pairs = true, .packing = true, .pad_multiple = 4};
  DataLoader loader(arguments, std::make_unique<Counting>(2 * 9, 6));
  int64_t pairs = 0;
  for (int64_t step = 0; step < loader.batches(0); ++step) {
    const TokenBatch batch = loader.next()->front();
    EXPECT_LE(batch.columns, 24);
    std::vector<int64_t> firsts;
    for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
      firsts.push_back(batch.ids[static_cast<size_t>(batch.cu_seqlens[i])]);
    }
    expect_pairs(batch, firsts);
    pairs += static_cast<int64_t>(batch.samples.size());
  }
  EXPECT_EQ(pairs, 9);
  EXPECT_LT(loader.batches(0), 9) << "every pair has a row of its own";
}

}  // namespace
}  // namespace concord
