#include "trainer/report/rank_times.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace concord {
namespace {

constexpr double kNoPeers = std::numeric_limits<double>::quiet_NaN();

// Returns the median of |values|, which is not empty; for an even number the mean of the two in the middle.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

// Returns the median of |sorted| without the element at |skipped|.
double median_of_others(const std::vector<double>& sorted, size_t skipped) {
  const size_t others = sorted.size() - 1;
  if (others == 0) return kNoPeers;
  const auto at = [&](size_t index) { return sorted[index < skipped ? index : index + 1]; };
  return others % 2 == 1 ? at(others / 2) : (at(others / 2 - 1) + at(others / 2)) / 2;
}

}  // namespace

const char* to_string(RankActivity activity) {
  switch (activity) {
    case RankActivity::compute: return "compute";
    case RankActivity::data: return "data";
    case RankActivity::saving: return "saving";
    case RankActivity::communication: break;
  }
  return "communication";
}

double RankTimes::of(RankActivity activity) const {
  switch (activity) {
    case RankActivity::compute: return compute;
    case RankActivity::data: return data;
    case RankActivity::saving: return saving;
    case RankActivity::communication: break;
  }
  return communication;
}

RankTimes& RankTimes::operator+=(const RankTimes& other) {
  compute += other.compute;
  data += other.data;
  saving += other.saving;
  communication += other.communication;
  return *this;
}

RankTable merged(const RankTable& earlier, const RankTable& later) {
  RankTable both = earlier;
  both.last_step = later.last_step;
  for (size_t rank = 0; rank < both.ranks.size(); ++rank) both.ranks[rank] += later.ranks[rank];
  return both;
}

double peers_median(const RankTable& table, int64_t rank, RankActivity activity) {
  const auto itself = static_cast<size_t>(rank);
  std::vector<double> values;
  for (size_t peer = 0; peer < table.ranks.size(); ++peer) {
    if (peer != itself && table.stages[peer] == table.stages[itself]) values.push_back(table.ranks[peer].of(activity));
  }
  return values.empty() ? kNoPeers : median(std::move(values));
}

// Sorts each stage once: a job may have many thousands of ranks.
std::vector<double> relative_own_times(const RankTable& table) {
  std::map<int64_t, std::vector<double>> stages;
  for (size_t rank = 0; rank < table.ranks.size(); ++rank)
    stages[table.stages[rank]].push_back(table.ranks[rank].own());
  for (auto& [stage, times] : stages) std::sort(times.begin(), times.end());
  std::vector<double> relative;
  for (size_t rank = 0; rank < table.ranks.size(); ++rank) {
    const std::vector<double>& sorted = stages[table.stages[rank]];
    const double own = table.ranks[rank].own();
    const auto place = std::lower_bound(sorted.begin(), sorted.end(), own);
    const double peers = median_of_others(sorted, static_cast<size_t>(place - sorted.begin()));
    relative.push_back(peers > 0 ? own / peers : kNoPeers);
  }
  return relative;
}

RankActivity largest_excess(const RankTable& table, int64_t rank) {
  const auto excess = [&](RankActivity activity) {
    return table.ranks[static_cast<size_t>(rank)].of(activity) - peers_median(table, rank, activity);
  };
  RankActivity largest = RankActivity::compute;
  for (const RankActivity activity : {RankActivity::data, RankActivity::saving}) {
    if (excess(activity) > excess(largest)) largest = activity;
  }
  return largest;
}

std::vector<std::pair<std::string, double>> rank_metrics(const RankTable& table) {
  std::vector<std::pair<std::string, double>> metrics;
  if (table.ranks.empty()) return metrics;
  for (const RankActivity activity : kRankActivities) {
    std::vector<double> values;
    for (const RankTimes& times : table.ranks) values.push_back(times.of(activity));
    metrics.emplace_back(std::string("rank_") + to_string(activity) + "_seconds",
                         median(std::move(values)) / static_cast<double>(table.steps()));
  }
  const std::vector<double> relative = relative_own_times(table);
  const auto is_faster = [](double a, double b) { return std::isnan(a) ? !std::isnan(b) : a < b; };
  const auto slowest = std::max_element(relative.begin(), relative.end(), is_faster);
  if (std::isnan(*slowest)) return metrics;
  metrics.emplace_back("slowest_rank", static_cast<double>(slowest - relative.begin()));
  metrics.emplace_back("slowest_rank_ratio", *slowest);
  return metrics;
}

}  // namespace concord
