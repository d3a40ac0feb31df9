#include "trainer/data/batch_division.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "core/base/config_error.h"
#include "trainer/data/sampler.h"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Counts = std::vector<int64_t>;

Counts divided(int64_t total, const std::vector<double>& speeds, int64_t unit = 1) {
  return divide_by_speed(total, speeds, unit);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(BatchDivision, IsInProportionToTheSpeeds) {
  EXPECT_THAT(divided(8, {3, 1}), ElementsAre(6, 2));
  EXPECT_THAT(divided(12, {1, 1, 1}), ElementsAre(4, 4, 4));
  EXPECT_THAT(divided(18, {10, 1, 7}), ElementsAre(10, 1, 7));
  EXPECT_THAT(divided(4, {100, 1}), ElementsAre(3, 1)) << "every replica has one";
  EXPECT_THAT(divided(16, {3, 1}, 4), ElementsAre(12, 4));
}

// All ways to divide the micro-batches, compared by the time of the slowest replica.
double best_time(int64_t left, std::span<const double> speeds) {
  if (speeds.size() == 1) return static_cast<double>(left) / speeds[0];
  double best = std::numeric_limits<double>::infinity();
  for (int64_t own = 1; own <= left - std::ssize(speeds) + 1; ++own)
    best = std::min(best, std::max(static_cast<double>(own) / speeds[0], best_time(left - own, speeds.subspan(1))));
  return best;
}

TEST(BatchDivision, LeavesNoFasterOne) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> speed(0.2, 3);
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<double> speeds{speed(random), speed(random), speed(random)};
    const int64_t total = 3 + trial % 15;
    const Counts counts = divided(total, speeds);
    double time = 0;
    for (size_t i = 0; i < speeds.size(); ++i) time = std::max(time, static_cast<double>(counts[i]) / speeds[i]);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), total);
    EXPECT_DOUBLE_EQ(time, best_time(total, speeds));
  }
}

TEST(BatchDivision, EveryMicroBatchIsAssignedOnce) {
  for (const Counts& counts : {Counts{1}, Counts{6, 2}, Counts{1, 4, 2}, Counts{3, 3, 3}, Counts{5, 1, 1, 7}}) {
    Counts all;
    for (int64_t replica = 0; replica < std::ssize(counts); ++replica) {
      const Counts own = micro_batches_of_replica(counts, replica);
      EXPECT_EQ(std::ssize(own), counts[static_cast<size_t>(replica)]);
      EXPECT_TRUE(std::ranges::is_sorted(own));
      all.insert(all.end(), own.begin(), own.end());
    }
    std::ranges::sort(all);
    for (int64_t i = 0; i < std::ssize(all); ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i);
  }
}

TEST(BatchDivision, EqualNumbersAreAssignedAsWithoutIt) {
  const BatchShape shape{.micro_batch_size = 1, .accumulation = 5, .dp_size = 3};
  for (int64_t replica = 0; replica < 3; ++replica) {
    const Counts own = micro_batches_of_replica(Counts{5, 5, 5}, replica);
    for (int64_t m = 0; m < 5; ++m) EXPECT_EQ(own[static_cast<size_t>(m)], shape.row_at(m, replica, 0));
  }
}

TEST(BatchDivision, TooFewMicroBatchesAreAnError) {
  EXPECT_THAT(error_of([] { divided(2, {1, 1, 1}); }),
              HasSubstr("2 micro-batches or layers cannot be divided among 3"));
  EXPECT_THAT(error_of([] { divided(6, {1, 1}, 4); }), HasSubstr("in multiples of 4"));
}

TEST(BatchDivision, SpeedsAreThoseOfEqualPartsOfTheReplicas) {
  EXPECT_THAT(parse_replica_speeds("3,1", 4), ElementsAre(3, 3, 1, 1));
  EXPECT_THAT(parse_replica_speeds("0.5,2,1", 3), ElementsAre(0.5, 2, 1));
  EXPECT_THAT(error_of([] { parse_replica_speeds("3,1", 3); }), HasSubstr("2 numbers for 3 data-parallel replicas"));
  for (const char* wrong : {"", "3,", "3,0", "3,-1", "3,x", "nan,1", "automatic"})
    EXPECT_THAT(error_of([&] { parse_replica_speeds(wrong, 2); }), HasSubstr("must be auto, or numbers above 0"));
}

}  // namespace
}  // namespace concord
