#include "core/checkpoint/read/parallel_load_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

namespace concord {
namespace {

// Returns how many times each element of each tensor is read; checks that no two pieces of a round overlap in a share.
std::vector<std::vector<int>> times_read(const std::vector<SharedTensor>& tensors, const ParallelLoadPlan& plan,
                                         int64_t readers) {
  std::vector<std::vector<int>> times;
  for (const SharedTensor& tensor : tensors) times.emplace_back(static_cast<size_t>(tensor.elements), 0);
  for (const SharedRound& round : plan.rounds) {
    std::map<int64_t, int64_t> used;  // bytes of each reader's share so far
    for (const ReadShard& piece : round.pieces) {
      const int64_t size = tensors[piece.tensor].element_size;
      EXPECT_LT(piece.reader, readers);
      EXPECT_GE(piece.at, used[piece.reader]);
      EXPECT_EQ(piece.at % size, 0);
      used[piece.reader] = piece.at + (piece.end - piece.begin) * size;
      EXPECT_LE(used[piece.reader], plan.share);
      for (int64_t i = piece.begin; i < piece.end; ++i) ++times[piece.tensor].at(static_cast<size_t>(i));
    }
  }
  return times;
}

TEST(ParallelLoadPlan, ReadsEveryElementOnceInSharesOfTheSameSize) {
  const std::vector<SharedTensor> tensors = {{1000, 4}, {1, 2}, {0, 4}, {77, 2}, {5000, 4}, {3, 8}};
  int64_t bytes = 0;
  for (const SharedTensor& tensor : tensors) bytes += (tensor.elements * tensor.element_size + 63) / 64 * 64;
  for (const int64_t readers : {1, 2, 3, 8, 1000}) {
    for (const int64_t round_bytes : {64, 1000, 4096, 1 << 20}) {
      SCOPED_TRACE(::testing::Message() << readers << " readers, rounds of " << round_bytes);
      const ParallelLoadPlan plan = plan_parallel_load(tensors, readers, round_bytes);
      for (const std::vector<int>& tensor : times_read(tensors, plan, readers)) {
        for (const int times : tensor) EXPECT_EQ(times, 1);
      }
      const int64_t rounds = (bytes + round_bytes - 1) / round_bytes;
      EXPECT_LE(plan.rounds.size(), static_cast<size_t>(rounds));
      // Split evenly, up to the alignment of a share.
      EXPECT_LT(plan.share, bytes / (rounds * readers) + 128);
    }
  }
}

TEST(ParallelLoadPlan, HasNoRoundsWhereThereIsNothingToRead) {
  EXPECT_TRUE(plan_parallel_load({}, 4, 100).rounds.empty());
  const std::vector<SharedTensor> empty = {{0, 4}};
  EXPECT_TRUE(plan_parallel_load(empty, 4, 100).rounds.empty());
}

// 100 floats over two ranks in rounds of 256 bytes: 400 bytes in two rounds of two shares of 128.
TEST(ParallelLoadPlan, CutsATensorOverRanksAndRounds) {
  const std::vector<SharedTensor> tensor = {{100, 4}};
  const ParallelLoadPlan plan = plan_parallel_load(tensor, 2, 256);
  EXPECT_EQ(plan.share, 128);
  ASSERT_EQ(plan.rounds.size(), 2u);
  EXPECT_EQ(plan.rounds[0].pieces, (std::vector<ReadShard>{{0, 0, 32, 0, 0}, {0, 32, 64, 1, 0}}));
  EXPECT_EQ(plan.rounds[1].pieces, (std::vector<ReadShard>{{0, 64, 96, 0, 0}, {0, 96, 100, 1, 0}}));
}

}  // namespace
}  // namespace concord
