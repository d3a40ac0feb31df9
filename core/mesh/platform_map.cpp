#include "core/mesh/platform_map.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

constexpr GroupKind kInsideOnly[] = {GroupKind::tp, GroupKind::cp, GroupKind::ep, GroupKind::etp};

// The first group of |kind| that crosses platforms; nullopt if none does.
std::optional<RankGroup> first_crossing(const RankLayout& layout, const PlatformMap& platforms, GroupKind kind) {
  for (int64_t i = 0; i < layout.group_count(kind); ++i) {
    RankGroup group = layout.group(kind, i);
    if (platforms.crosses(group)) return group;
  }
  return std::nullopt;
}

std::string members_text(const RankGroup& group, const PlatformMap& platforms) {
  std::vector<std::string> names;
  for (const int64_t rank : group.members()) {
    if (names.empty() || names.back() != platforms.of(rank)) names.push_back(platforms.of(rank));
  }
  return fmt::format("{} ({})", group.to_string(), fmt::join(names, ", "));
}

}  // namespace

PlatformMap::PlatformMap(std::vector<std::string> names, int64_t world) : names_(std::move(names)) {
  const auto count = static_cast<int64_t>(names_.size());
  if (count == 0 || world % count != 0) {
    throw ConfigError(
        fmt::format("platform names {} platforms ({}) for {} ranks; their number must divide that of the ranks, which "
                    "are divided evenly among them",
                    count, fmt::join(names_, ","), world));
  }
  part_ = world / count;
}

PlatformMap PlatformMap::parse(const std::string& list, int64_t world) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    names.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  if (names.size() > 1 && std::ranges::find(names, "") != names.end())
    throw ConfigError(fmt::format("platform is {}; a name in the list is empty", quoted(list)));
  return {std::move(names), world};
}

const std::string& PlatformMap::of(int64_t rank) const { return names_[static_cast<size_t>(rank / part_)]; }

bool PlatformMap::is_mixed() const {
  return std::ranges::any_of(names_, [&](const std::string& name) { return name != names_.front(); });
}

std::string PlatformMap::to_string() const {
  if (!is_mixed()) return names_.front();
  std::string text;
  for (size_t begin = 0; begin < names_.size();) {
    size_t end = begin;
    while (end < names_.size() && names_[end] == names_[begin]) ++end;
    text += fmt::format("{}{} x {}", begin > 0 ? ", " : "", static_cast<int64_t>(end - begin) * part_, names_[begin]);
    begin = end;
  }
  return text;
}

bool PlatformMap::crosses(const RankGroup& group) const {
  if (!is_mixed()) return false;
  for (int64_t i = 1; i < group.size(); ++i) {
    if (of(group[i]) != of(group[0])) return true;
  }
  return false;
}

int64_t PlatformMap::index_among(int64_t first, int64_t rank) const {
  int64_t count = 0;
  for (int64_t other = first; other < rank; ++other) count += of(other) == of(rank) ? 1 : 0;
  return count;
}

void check_platforms(const RankLayout& layout, const PlatformMap& platforms) {
  if (!platforms.is_mixed()) return;
  for (const GroupKind kind : kInsideOnly) {
    const std::optional<RankGroup> group = first_crossing(layout, platforms, kind);
    if (!group) continue;
    throw ConfigError(fmt::format(
        "the {} group of ranks {} crosses platforms; only pipeline stages and data-parallel replicas can be "
        "on different platforms: change the order of the platforms or the layout (`concord plan --platform "
        "... --world_size {}` prints the groups)",
        to_string(kind), members_text(*group, platforms), layout.world()));
  }
}

std::string describe_platforms(const RankLayout& layout, const PlatformMap& platforms) {
  std::string text;
  for (const GroupKind kind : all_group_kinds()) {
    if (layout.group(kind, 0).size() == 1) continue;
    const std::optional<RankGroup> group = first_crossing(layout, platforms, kind);
    text += fmt::format("  {:<19} {}\n", to_string(kind),
                        group ? "crosses platforms, over the bridge: " + members_text(*group, platforms)
                              : "inside platforms, with their own collectives");
  }
  return text;
}

}  // namespace concord
