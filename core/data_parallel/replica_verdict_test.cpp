#include "core/data_parallel/replica_verdict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace concord {
namespace {

int64_t count(const std::vector<int64_t>& values, int64_t value) {
  return std::count(values.begin(), values.end(), value);
}

// Checks against the definition, replica by replica.
void expect_right(const std::vector<int64_t>& values) {
  const ReplicaVerdict verdict = judge_replicas(values);
  const auto replicas = static_cast<int64_t>(values.size());
  std::vector<int64_t> wanted;
  for (const int64_t majority : values) {
    if (2 * count(values, majority) <= replicas || !wanted.empty()) continue;
    for (int64_t i = 0; i < replicas; ++i) {
      if (values[static_cast<size_t>(i)] != majority) wanted.push_back(i);
    }
  }
  EXPECT_EQ(verdict.culprits, wanted);
  EXPECT_EQ(verdict.agree(), count(values, values[0]) == replicas);
  std::vector<int64_t> seen;
  for (size_t s = 0; s < verdict.groups.size(); ++s) {
    const std::vector<int64_t>& side = verdict.groups[s];
    ASSERT_FALSE(side.empty());
    const int64_t value = values[static_cast<size_t>(side[0])];
    EXPECT_EQ(static_cast<int64_t>(side.size()), count(values, value)) << "all with that value";
    for (const int64_t place : side) EXPECT_EQ(values[static_cast<size_t>(place)], value);
    seen.insert(seen.end(), side.begin(), side.end());
    if (s == 0) continue;
    const std::vector<int64_t>& before = verdict.groups[s - 1];
    EXPECT_TRUE(before.size() > side.size() || (before.size() == side.size() && before[0] < side[0]));
  }
  std::sort(seen.begin(), seen.end());
  std::vector<int64_t> all(values.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all) << "each replica on one side";
}

// All partitions of up to 6 replicas, with checksums in any order.
TEST(ReplicaVerdict, IsRightForAllAssignmentsOfValuesToSixReplicas) {
  for (size_t replicas = 1; replicas <= 6; ++replicas) {
    std::vector<int64_t> values(replicas, 0);
    while (true) {
      expect_right(values);
      size_t digit = 0;
      while (digit < replicas && values[digit] + 1 == static_cast<int64_t>(replicas)) values[digit++] = 0;
      if (digit == replicas) break;
      ++values[digit];
    }
  }
}

// All combinations of finite and non-finite replicas, up to 5 with three values.
TEST(ReplicaVerdict, AnIntactReplicaIsFiniteAndEqualToAllThatAre) {
  for (size_t replicas = 1; replicas <= 5; ++replicas) {
    std::vector<int64_t> values(replicas), finite(replicas);
    int cases = 1;
    for (size_t i = 0; i < replicas; ++i) cases *= 6;
    for (int number = 0; number < cases; ++number) {
      for (size_t i = 0, rest = static_cast<size_t>(number); i < replicas; ++i, rest /= 6) {
        values[i] = static_cast<int64_t>(rest % 3);
        finite[i] = static_cast<int64_t>(rest / 3 % 2);
      }
      std::vector<int64_t> wanted;
      for (size_t i = 0; i < replicas; ++i) {
        if (finite[i] != 0) wanted.push_back(values[i]);
      }
      const std::optional<int64_t> found = intact_replica(values, finite);
      const bool is_one = !wanted.empty() && count(wanted, wanted[0]) == static_cast<int64_t>(wanted.size());
      ASSERT_EQ(found.has_value(), is_one) << number;
      if (!found) continue;
      EXPECT_EQ(finite[static_cast<size_t>(*found)], 1);
      EXPECT_EQ(values[static_cast<size_t>(*found)], wanted[0]);
    }
  }
}

TEST(ReplicaVerdict, SaysWhoDiffersFromWhom) {
  const std::vector<int64_t> ranks{0, 4, 8, 12};
  const auto text = [&](const std::vector<int64_t>& values) { return to_text(judge_replicas(values), ranks); };
  EXPECT_EQ(text({1, 1, 1, 1}), "");
  EXPECT_EQ(text({1, 1, 2, 1}), "rank 8 differs from ranks 0, 4 and 12");
  EXPECT_EQ(text({1, 2}), "rank 0 and rank 4 differ");
  EXPECT_EQ(text({1, 2, 1, 2}), "ranks 0 and 8 and ranks 4 and 12 differ");
  EXPECT_EQ(text({1, 2, 3}), "rank 0, rank 4 and rank 8 differ");
  EXPECT_EQ(text({-1, 2, 3, -1}), "ranks 0 and 12, rank 4 and rank 8 differ");
}

TEST(ReplicaVerdict, ManyRanksAreCounted) {
  std::vector<int64_t> ranks(100), values(100, 5);
  std::iota(ranks.begin(), ranks.end(), 0);
  values[99] = values[50] = 6;
  EXPECT_EQ(to_text(judge_replicas(values), ranks),
            "ranks 50 and 99 differ from ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 82 more");
}

}  // namespace
}  // namespace concord
