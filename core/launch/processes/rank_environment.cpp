#include "core/launch/processes/rank_environment.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace concord {
namespace {

bool sets(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
}

}  // namespace

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
