#include "core/mesh/store/platform_exchange.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/config_error.h"

namespace concord {
namespace {

constexpr const char* kAllPlatforms = "platforms/all";

std::string platform_count_key(const std::string& name) { return fmt::format("platforms/count/{}", name); }
std::string platform_rank_key(int64_t rank) { return fmt::format("platforms/rank/{}", rank); }

// "+ascend\n-cpu\n": a rank per line, with + if it has chosen its platform.
std::string gather_platforms(Store& store, int64_t world, std::chrono::milliseconds timeout) {
  std::string all;
  for (int64_t rank = 0; rank < world; ++rank) all += store.get(platform_rank_key(rank), timeout) + "\n";
  return all;
}

PlatformMap parse_platforms(const std::string& all, int64_t world) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin < all.size(); begin = all.find('\n', begin) + 1)
    names.push_back(all.substr(begin + 1, all.find('\n', begin) - begin - 1));
  return {std::move(names), world};
}

}  // namespace

void announce_platform(Store& store, const OwnPlatform& own) {
  store.set(platform_rank_key(own.rank), (own.is_chosen ? "+" : "-") + own.name);
  store.add(platform_count_key(own.name), 1);
}

PlatformMap exchange_platforms(Store& store, const OwnPlatform& own, std::chrono::milliseconds timeout) {
  if (store.add(platform_count_key(own.name), 0) == own.world) return {};
  if (own.rank == 0) store.set(kAllPlatforms, gather_platforms(store, own.world, timeout));
  const std::string gathered = store.get(kAllPlatforms, timeout), all = "\n" + gathered;
  PlatformMap platforms = parse_platforms(gathered, own.world);
  const size_t automatic = all.find("\n-");
  if (automatic == std::string::npos) return platforms;
  const int64_t rank = std::count(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(automatic), '\n');
  throw ConfigError(
      fmt::format("the ranks are on different platforms, and rank {} uses {} because it is the best that has a device "
                  "there; set CONCORD_PLATFORM or platform for every rank to train on different platforms, or find out "
                  "with `concord platforms` why the others are missing",
                  rank, platforms.of(rank)));
}

}  // namespace concord
