#include "trainer/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

namespace concord {
namespace {

std::vector<int64_t> listed(const SampleOrder& order) {
  std::vector<int64_t> list;
  for (int64_t i = 0; i < order.size(); ++i) list.push_back(order.at(i));
  return list;
}

TEST(SampleOrder, EverySampleComesOnceWhateverTheSize) {
  for (const int64_t size : {1, 2, 3, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4096, 4097, 100000}) {
    std::vector<int64_t> list = listed(SampleOrder(1, 0, size, true));
    std::sort(list.begin(), list.end());
    std::vector<int64_t> expected(static_cast<size_t>(size));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(list, expected) << size;
  }
}

TEST(SampleOrder, UnshuffledIsAsItIs) {
  EXPECT_EQ(listed(SampleOrder(9, 4, 5, false)), (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

// Checkpoints rely on it: changing these numbers changes the order of every resumed run.
TEST(SampleOrder, OrderNeverChanges) {
  EXPECT_EQ(listed(SampleOrder(42, 0, 10, true)), (std::vector<int64_t>{4, 9, 6, 5, 7, 2, 3, 8, 0, 1}));
}

// torch 2.13: torch.randperm(10, generator=torch.Generator().manual_seed(42 + 1))
TEST(SampleOrder, TorchsIsRandperm) {
  EXPECT_EQ(listed(SampleOrder(42, 1, 10, true, SampleShuffle::torch)),
            (std::vector<int64_t>{8, 4, 9, 0, 5, 1, 6, 7, 2, 3}));
  const std::vector<int64_t> list = listed(SampleOrder(7, 0, 1000, true, SampleShuffle::torch));
  EXPECT_EQ((std::vector<int64_t>{list[0], list[1], list[500], list[998], list[999]}),
            (std::vector<int64_t>{615, 284, 300, 477, 409}));
  EXPECT_EQ(listed(SampleOrder(42, 1, 3, false, SampleShuffle::torch)), (std::vector<int64_t>{0, 1, 2}));
}

TEST(SampleOrder, SeedsAndEpochsGiveOtherOrders) {
  std::set<std::vector<int64_t>> orders;
  for (int64_t seed = 0; seed < 10; ++seed) {
    for (int64_t epoch = 0; epoch < 10; ++epoch) orders.insert(listed(SampleOrder(seed, epoch, 50, true)));
  }
  EXPECT_EQ(orders.size(), 100U);
}

// 1000 epochs of 4 samples: each of the 24 orders is expected 41.7 times; chi square with 23 degrees of freedom is
// above 60 with probability 4e-5 for a fair shuffle, and the keys are fixed.
TEST(SampleOrder, AllOrdersOfFewSamplesAreAboutEquallyLikely) {
  std::vector<int> counts(256);
  for (int64_t epoch = 0; epoch < 1000; ++epoch) {
    const std::vector<int64_t> list = listed(SampleOrder(5, epoch, 4, true));
    ++counts[static_cast<size_t>(list[0] * 64 + list[1] * 16 + list[2] * 4 + list[3])];
  }
  double chi_square = 0;
  int seen = 0;
  for (const int count : counts) {
    if (count == 0) continue;
    ++seen;
    chi_square += (count - 1000.0 / 24) * (count - 1000.0 / 24) / (1000.0 / 24);
  }
  EXPECT_EQ(seen, 24);
  EXPECT_LT(chi_square, 60);
}

// Adjacent samples must not stay adjacent: the mean distance of two independent positions among n is n / 3.
TEST(SampleOrder, NeighboursAreSpread) {
  constexpr int64_t kSize = 30000;
  const std::vector<int64_t> list = listed(SampleOrder(3, 1, kSize, true));
  double distance = 0;
  for (size_t i = 1; i < list.size(); ++i) distance += static_cast<double>(std::abs(list[i] - list[i - 1]));
  EXPECT_NEAR(distance / kSize, kSize / 3.0, kSize / 100.0);
}

TEST(BatchShape, RanksAndMicroBatchesCoverTheGlobalBatchInOrder) {
  for (const BatchShape shape : {BatchShape{1, 1, 1}, BatchShape{2, 3, 1}, BatchShape{1, 4, 2}, BatchShape{3, 2, 5}}) {
    std::vector<int64_t> rows;
    for (int64_t m = 0; m < shape.accumulation; ++m) {
      for (int64_t rank = 0; rank < shape.dp_size; ++rank) {
        for (int64_t row = 0; row < shape.micro_batch_size; ++row) rows.push_back(shape.row_at(m, rank, row));
      }
    }
    std::vector<int64_t> expected(static_cast<size_t>(shape.rows()));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(rows, expected);
  }
}

}  // namespace
}  // namespace concord
