#include "backends/net/hosts.h"

#include <map>

namespace concord::net {

HostMap map_hosts(std::span<const uint64_t> identities) {
  HostMap map;
  std::map<uint64_t, int32_t> numbers;
  for (size_t rank = 0; rank < identities.size(); ++rank) {
    const auto [found, is_new] = numbers.try_emplace(identities[rank], map.host_count());
    if (is_new) map.ranks.emplace_back();
    auto& members = map.ranks[static_cast<size_t>(found->second)];
    map.host.push_back(found->second);
    map.place.push_back(static_cast<int32_t>(members.size()));
    if (!is_new && members.back() + 1 != static_cast<int32_t>(rank)) map.contiguous = false;
    members.push_back(static_cast<int32_t>(rank));
  }
  for (const auto& members : map.ranks) map.even = map.even && members.size() == map.ranks.front().size();
  return map;
}

}  // namespace concord::net
