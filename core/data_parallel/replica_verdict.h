// Which of several replicas is wrong, from what each of them has: a pure function. Needs no libtorch. Threads: any.
//
// Example:
//   #include "core/data_parallel/replica_verdict.h"
//   const ReplicaVerdict verdict = judge_replicas(std::vector<int64_t>{7, 7, 5});
//   // verdict.culprits == {2}; verdict.sides == {{0, 1}, {2}}
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace concord {

struct ReplicaVerdict {
  // Replicas with equal values, by their places: larger sides first, of equal ones that with the lowest place. One side
  // where all agree.
  std::vector<std::vector<int64_t>> sides;
  // All but the first side where that has more than half of the replicas; empty where it has not (two replicas that
  // differ, two against two): then it cannot be told who is wrong.
  std::vector<int64_t> culprits;

  bool agree() const { return sides.size() <= 1; }
  bool operator==(const ReplicaVerdict&) const = default;
};

// |values| are the replicas', by place.
ReplicaVerdict judge_replicas(std::span<const int64_t> values);

// The place of a replica whose values may replace those of all others: every replica with finite values has the same
// ones. What became NaN or Inf in memory has not been trained with, as the loss would not have been finite; a finite
// value that changed may have been for some steps. Nothing where none is finite, or finite ones differ.
std::optional<int64_t> intact_replica(std::span<const int64_t> values, std::span<const int64_t> finite);

// "rank 2 differs from ranks 0, 1 and 3"; "rank 0 and rank 4 differ"; |ranks| are those of the places. Empty where they
// agree.
std::string to_text(const ReplicaVerdict& verdict, std::span<const int64_t> ranks);

}  // namespace concord
