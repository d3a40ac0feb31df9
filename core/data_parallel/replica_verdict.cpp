#include "core/data_parallel/replica_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace concord {
namespace {

constexpr size_t kMostListed = 16;  // ranks in a message

std::string list(const std::vector<int64_t>& places, std::span<const int64_t> ranks) {
  std::vector<int64_t> chosen;
  for (const int64_t place : places) chosen.push_back(ranks[static_cast<size_t>(place)]);
  return rank_list(chosen);
}

}  // namespace

std::string rank_list(std::span<const int64_t> ranks) {
  const size_t listed = std::min(ranks.size(), kMostListed);
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < listed; ++i) {
    const bool is_last = i + 1 == ranks.size();
    if (i > 0) text += is_last ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (listed < ranks.size()) text += fmt::format(" and {} more", ranks.size() - listed);
  return text;
}

ReplicaVerdict judge_replicas(std::span<const int64_t> values) {
  std::map<int64_t, std::vector<int64_t>> by_value;
  for (size_t i = 0; i < values.size(); ++i) by_value[values[i]].push_back(static_cast<int64_t>(i));
  ReplicaVerdict verdict;
  for (auto& [value, places] : by_value) verdict.sides.push_back(std::move(places));
  std::sort(verdict.sides.begin(), verdict.sides.end(), [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
  });
  if (verdict.agree() || 2 * verdict.sides.front().size() <= values.size()) return verdict;
  for (size_t i = 1; i < verdict.sides.size(); ++i) {
    verdict.culprits.insert(verdict.culprits.end(), verdict.sides[i].begin(), verdict.sides[i].end());
  }
  std::sort(verdict.culprits.begin(), verdict.culprits.end());
  return verdict;
}

std::string to_text(const ReplicaVerdict& verdict, std::span<const int64_t> ranks) {
  if (verdict.agree()) return "";
  if (!verdict.culprits.empty()) {
    return fmt::format("{} {} from {}", list(verdict.culprits, ranks),
                       verdict.culprits.size() == 1 ? "differs" : "differ", list(verdict.sides.front(), ranks));
  }
  std::string text = list(verdict.sides.front(), ranks);
  for (size_t i = 1; i < verdict.sides.size(); ++i) {
    text += (i + 1 == verdict.sides.size() ? " and " : ", ") + list(verdict.sides[i], ranks);
  }
  return text + " differ";
}

}  // namespace concord
