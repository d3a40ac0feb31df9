// numpy's sum of doubles, bit for bit: Megatron divides weights by it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace concord {

// Pairwise: up to 128 values in eight sums that are then added, above that in halves whose lengths are multiples of 8.
inline double numpy_sum(std::span<const double> values) {
  constexpr size_t kWays = 8, kBlock = 128;
  const size_t count = values.size();
  if (count > kBlock) {
    const size_t half = count / 2 / kWays * kWays;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  size_t next = 0;
  double total = 0;
  if (count >= kWays) {
    double sums[kWays];
    for (; next < kWays; ++next) sums[next] = values[next];
    for (; next + kWays <= count; next += kWays) {
      for (size_t way = 0; way < kWays; ++way) sums[way] += values[next + way];
    }
    total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
  for (; next < count; ++next) total += values[next];
  return total;
}

// Returns |weights| divided by their sum.
inline std::vector<double> normalized(std::vector<double> weights) {
  const double sum = numpy_sum(weights);
  for (double& weight : weights) weight /= sum;
  return weights;
}

}  // namespace concord
