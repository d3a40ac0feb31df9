#include "core/data_parallel/replica_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/mesh/rank_list.h"

namespace concord {
namespace {

std::string list(const std::vector<int64_t>& places, std::span<const int64_t> ranks) {
  std::vector<int64_t> chosen;
  for (const int64_t place : places) chosen.push_back(ranks[static_cast<size_t>(place)]);
  return rank_list(chosen);
}

}  // namespace

ReplicaVerdict judge_replicas(std::span<const int64_t> values) {
  std::map<int64_t, std::vector<int64_t>> by_value;
  for (size_t i = 0; i < values.size(); ++i) by_value[values[i]].push_back(static_cast<int64_t>(i));
  ReplicaVerdict verdict;
  for (auto& [value, places] : by_value) verdict.groups.push_back(std::move(places));
  std::sort(verdict.groups.begin(), verdict.groups.end(), [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
  });
  if (verdict.agree() || 2 * verdict.groups.front().size() <= values.size()) return verdict;
  for (size_t i = 1; i < verdict.groups.size(); ++i) {
    verdict.culprits.insert(verdict.culprits.end(), verdict.groups[i].begin(), verdict.groups[i].end());
  }
  std::sort(verdict.culprits.begin(), verdict.culprits.end());
  return verdict;
}

std::optional<int64_t> intact_replica(std::span<const int64_t> values, std::span<const int64_t> finite) {
  std::optional<size_t> first;
  for (size_t i = 0; i < values.size(); ++i) {
    if (finite[i] == 0) continue;
    if (first && values[i] != values[*first]) return std::nullopt;
    if (!first) first = i;
  }
  if (!first) return std::nullopt;
  return static_cast<int64_t>(*first);
}

std::string to_text(const ReplicaVerdict& verdict, std::span<const int64_t> ranks) {
  if (verdict.agree()) return "";
  if (!verdict.culprits.empty()) {
    return fmt::format("{} {} from {}", list(verdict.culprits, ranks),
                       verdict.culprits.size() == 1 ? "differs" : "differ", list(verdict.groups.front(), ranks));
  }
  std::string text = list(verdict.groups.front(), ranks);
  for (size_t i = 1; i < verdict.groups.size(); ++i) {
    text += (i + 1 == verdict.groups.size() ? " and " : ", ") + list(verdict.groups[i], ranks);
  }
  return text + " differ";
}

}  // namespace concord
