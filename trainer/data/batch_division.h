// The division of the micro-batches of a step among data-parallel replicas, and of layers among pipeline stages, by
// their speed (heterogeneous_split). Pure functions.
//
// Micro-batches of the global batch are assigned in rounds: round m has one for each replica with more than m of them,
// in rank order. If all have the same number, micro-batch m of replica r is number m * replicas + r (BatchShape).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace concord {

// Returns how many of |total| equal pieces of work each of the replicas or stages gets, in multiples of |unit|, such
// that the last of them finishes as early as possible: 8 at speeds 3, 1 are 6 and 2. All get at least |unit|. |speeds|
// are relative. Throws ConfigError if |total| is not a multiple of |unit| with at least one unit for each.
std::vector<int64_t> divide_by_speed(int64_t total, std::span<const double> speeds, int64_t unit = 1);

// Returns the numbers in the global batch of the micro-batches of |replica|, which are counts[replica].
std::vector<int64_t> micro_batches_of_replica(std::span<const int64_t> counts, int64_t replica);

// Parses the speeds of equal, consecutive parts of the replicas: "3,1" for four replicas is 3, 3, 1, 1. Throws
// ConfigError unless all are numbers above 0 and their number divides |replicas|.
std::vector<double> parse_replica_speeds(const std::string& text, int64_t replicas);

}  // namespace concord
