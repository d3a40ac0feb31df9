// Determines which of several replicas is wrong, from their values: a pure function, independent of libtorch. Threads:
// any.
//
// Example:
//   #include "core/data_parallel/replica_verdict.h"
//   const ReplicaVerdict verdict = judge_replicas(std::vector<int64_t>{7, 7, 5});
//   // verdict.culprits == {2}; verdict.groups == {{0, 1}, {2}}
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace concord {

struct ReplicaVerdict {
  // Indices of replicas with equal values: larger sets first, ties by lowest index. One set if all agree.
  std::vector<std::vector<int64_t>> groups;
  // All replicas outside the first set if that has more than half of them. Empty otherwise (two replicas that differ,
  // two against two), since the wrong ones cannot be determined.
  std::vector<int64_t> culprits;

  bool agree() const { return groups.size() <= 1; }
  bool operator==(const ReplicaVerdict&) const = default;
};

// |values| are those of the replicas, by index.
ReplicaVerdict judge_replicas(std::span<const int64_t> values);

// Returns the index of a replica whose values may replace those of all others: all replicas with finite values are
// equal. Values that became NaN or Inf in memory have not been trained with, since the loss would not have been finite;
// a finite value that changed may have been used for some steps. nullopt if no replica is finite, or finite ones
// differ.
std::optional<int64_t> intact_replica(std::span<const int64_t> values, std::span<const int64_t> finite);

// Returns "rank 2 differs from ranks 0, 1 and 3" or "rank 0 and rank 4 differ"; |ranks| maps indices to ranks. Empty if
// they agree.
std::string to_text(const ReplicaVerdict& verdict, std::span<const int64_t> ranks);

}  // namespace concord
