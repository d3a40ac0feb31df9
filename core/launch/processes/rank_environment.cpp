#include "core/launch/processes/rank_environment.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/config_error.h"
#include "core/mesh/platform_map.h"

namespace concord {
namespace {

bool sets(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
}

constexpr std::string_view kPlatform = "CONCORD_PLATFORM";

// The platforms of all ranks, if |base| names several.
std::optional<PlatformMap> several_platforms(std::span<const std::string> base, int world) {
  const auto found = std::ranges::find_if(base, [](const std::string& entry) { return sets(entry, kPlatform); });
  if (found == base.end() || found->find(',') == std::string::npos) return std::nullopt;
  return PlatformMap::parse(found->substr(kPlatform.size() + 1), world);
}

std::string listed_platforms() {
  const char* value = std::getenv(std::string(kPlatform).c_str());
  return value != nullptr && std::string_view(value).find(',') != std::string_view::npos ? value : "";
}

}  // namespace

bool has_several_platforms() { return !listed_platforms().empty(); }

void check_platform_list(int64_t world, int spares, bool may_shrink) {
  const std::string list = listed_platforms();
  if (list.empty() || !PlatformMap::parse(list, world).is_mixed()) return;
  if (spares == 0 && !may_shrink) return;
  throw ConfigError(fmt::format(
      "platform is {}, and {} is set; a job on several platforms is only started again with all its ranks: remove it",
      list, spares > 0 ? "--spares" : "allow_fewer_ranks"));
}

int device_index(std::span<const std::string> base, const RankPlace& place) {
  const std::optional<PlatformMap> platforms = several_platforms(base, place.world);
  return platforms ? static_cast<int>(platforms->index_among(place.first_rank, place.rank())) : place.local_rank;
}

std::vector<std::string> rank_environment(std::span<const std::string> base, const RankPlace& place) {
  const auto text = [](int number) { return std::to_string(number); };
  std::vector<std::pair<std::string_view, std::string>> ours = {
      {"RANK", text(place.rank())},
      {"WORLD_SIZE", text(place.world)},
      {"LOCAL_RANK", text(place.local_rank)},
      {"LOCAL_WORLD_SIZE", text(place.nproc)},
      {"GROUP_RANK", text(place.node_rank)},
      {"GROUP_WORLD_SIZE", text(place.nnodes)},
      {"ROLE_NAME", "default"},
      {"ROLE_RANK", text(place.rank())},
      {"ROLE_WORLD_SIZE", text(place.world)},
      {"MASTER_ADDR", place.master_addr},
      {"MASTER_PORT", text(place.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", text(place.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", text(place.max_restarts)},
      {"TORCHELASTIC_RUN_ID", "none"},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},  // rank 0 serves the store
  };
  const bool has_threads =
      std::any_of(base.begin(), base.end(), [](const std::string& entry) { return sets(entry, "OMP_NUM_THREADS"); });
  if (place.nproc > 1 && !has_threads)
    ours.emplace_back("OMP_NUM_THREADS", text(std::max(1, place.cores / place.nproc)));

  if (const std::optional<PlatformMap> platforms = several_platforms(base, place.world))
    ours.emplace_back(kPlatform, platforms->of(place.rank()));

  std::vector<std::string> result;
  for (const std::string& entry : base) {
    if (std::none_of(ours.begin(), ours.end(), [&](const auto& own) { return sets(entry, own.first); })) {
      result.push_back(entry);
    }
  }
  for (const auto& [name, value] : ours) result.push_back(std::string(name) + "=" + value);
  return result;
}

}  // namespace concord
