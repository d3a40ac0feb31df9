#include "trainer/data/batch_division.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {

// Greedy is optimal for equal pieces of work: each unit goes to the replica that would finish it first.
std::vector<int64_t> divide_by_speed(int64_t total, std::span<const double> speeds, int64_t unit) {
  const int64_t replicas = std::ssize(speeds), units = total / unit;
  if (units * unit != total || units < replicas) {
    throw ConfigError(fmt::format(
        "{} micro-batches or layers cannot be divided among {} in multiples of {}, at least one for each; use "
        "more micro-batches per step (gradient_accumulation_steps or global_batch_size), or fewer stages",
        total, replicas, unit));
  }
  std::vector<int64_t> counts(speeds.size(), 1);
  for (int64_t left = units - replicas; left > 0; --left) {
    size_t first = 0;
    const auto end_of = [&](size_t replica) { return static_cast<double>(counts[replica] + 1) / speeds[replica]; };
    for (size_t i = 1; i < counts.size(); ++i) {
      if (end_of(i) < end_of(first)) first = i;
    }
    ++counts[first];
  }
  for (int64_t& count : counts) count *= unit;
  return counts;
}

std::vector<int64_t> micro_batches_of_replica(std::span<const int64_t> counts, int64_t replica) {
  std::vector<int64_t> numbers;
  int64_t before = 0;  // micro-batches of earlier rounds
  for (int64_t round = 0; round < counts[static_cast<size_t>(replica)]; ++round) {
    const auto is_in_round = [round](int64_t count) { return count > round; };
    numbers.push_back(before + std::ranges::count_if(counts.first(static_cast<size_t>(replica)), is_in_round));
    before += std::ranges::count_if(counts, is_in_round);
  }
  return numbers;
}

std::vector<double> parse_replica_speeds(const std::string& text, int64_t replicas) {
  std::vector<double> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    char* rest = nullptr;
    const double speed = std::strtod(part.c_str(), &rest);
    if (part.empty() || *rest != '\0' || !std::isfinite(speed) || speed <= 0) {
      throw ConfigError(
          fmt::format("heterogeneous_split is {}; must be auto, or numbers above 0, one for each of equal "
                      "parts of the data-parallel replicas: 3,1",
                      quoted(text)));
    }
    parts.push_back(speed);
    begin = end + 1;
  }
  const auto count = std::ssize(parts);
  if (replicas % count != 0) {
    throw ConfigError(
        fmt::format("heterogeneous_split has {} numbers for {} data-parallel replicas; their number must "
                    "divide that of the replicas",
                    count, replicas));
  }
  std::vector<double> speeds;
  for (int64_t i = 0; i < replicas; ++i) speeds.push_back(parts[static_cast<size_t>(i / (replicas / count))]);
  return speeds;
}

}  // namespace concord
