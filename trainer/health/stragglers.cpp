#include "trainer/health/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/config_error.h"

namespace concord {
namespace {

// Returns for each rank of |table| whether it is slow.
std::vector<bool> slow_ranks(const RankTable& table) {
  const std::vector<double> relative = relative_own_times(table);
  std::vector<bool> slow;
  for (size_t rank = 0; rank < relative.size(); ++rank) {
    const double own = table.ranks[rank].own();
    const double excess = own - own / relative[rank];  // NaN without peers: then both comparisons are false
    slow.push_back(relative[rank] >= kSlowRatio && excess >= kMinExcess * static_cast<double>(table.steps()));
  }
  return slow;
}

// Describes |rank|, which is slow in |table|.
Straggler described(const RankTable& table, int64_t rank, double ratio) {
  const auto steps = static_cast<double>(table.steps());
  const RankActivity cause = largest_excess(table, rank);
  return {.rank = rank,
          .ratio = ratio,
          .cause = cause,
          .seconds = table.ranks[static_cast<size_t>(rank)].of(cause) / steps,
          .peers_seconds = peers_median(table, rank, cause) / steps,
          .first_step = table.first_step,
          .last_step = table.last_step};
}

std::string milliseconds_text(double seconds) {
  const double milliseconds = seconds * 1e3;
  return milliseconds < 9.95 ? fmt::format("{:.1f} ms", milliseconds) : fmt::format("{:.0f} ms", milliseconds);
}

}  // namespace

std::string to_string(const Straggler& straggler) {
  return fmt::format("rank {} is {:.0f} % slower than its peers ({}: {} per step against {}); steps {} to {}",
                     straggler.rank, (straggler.ratio - 1) * 100, to_string(straggler.cause),
                     milliseconds_text(straggler.seconds), milliseconds_text(straggler.peers_seconds),
                     straggler.first_step, straggler.last_step);
}

std::vector<Straggler> find_stragglers(const RankTable& before, const RankTable& now) {
  const std::vector<bool> was_slow = slow_ranks(before), is_slow = slow_ranks(now);
  const RankTable both = merged(before, now);
  const std::vector<double> relative = relative_own_times(both);
  std::vector<Straggler> stragglers;
  for (size_t rank = 0; rank < is_slow.size(); ++rank) {
    if (was_slow[rank] && is_slow[rank])
      stragglers.push_back(described(both, static_cast<int64_t>(rank), relative[rank]));
  }
  return stragglers;
}

std::vector<Straggler> StragglerWatch::add(const RankTable& table) {
  open_ = open_ ? merged(*open_, table) : table;
  if (open_->steps() < kWindowSteps) return {};
  const std::optional<RankTable> before = std::exchange(before_, std::exchange(open_, std::nullopt));
  if (!before) return {};
  const std::vector<Straggler> found = find_stragglers(*before, *before_);
  const std::vector<Straggler> named = std::exchange(named_, found);
  std::vector<Straggler> fresh;
  for (const Straggler& straggler : found) {
    const bool is_known = std::any_of(named.begin(), named.end(), [&](const Straggler& other) {
      return other.rank == straggler.rank && other.cause == straggler.cause;
    });
    if (!is_known) fresh.push_back(straggler);
  }
  return fresh;
}

}  // namespace concord
