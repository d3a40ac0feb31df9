// The assignment of ranks to hosts, a pure function of the hosts that the ranks report.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace concord::net {

struct HostMap {
  std::vector<std::vector<int32_t>> ranks;  // ranks per host, ascending; hosts ordered by their first rank
  std::vector<int32_t> host;                // host index per rank
  std::vector<int32_t> place;               // index of each rank on its host
  bool contiguous = true;                   // the ranks of every host are consecutive
  bool even = true;                         // every host has the same number of ranks

  int32_t host_count() const { return static_cast<int32_t>(ranks.size()); }
  int32_t leader(int32_t of) const { return ranks[static_cast<size_t>(of)].front(); }
  int32_t size_of(int32_t of) const { return static_cast<int32_t>(ranks[static_cast<size_t>(of)].size()); }
};

// |identities|: for every rank, a number that is equal for ranks of the same host.
HostMap map_hosts(std::span<const uint64_t> identities);

}  // namespace concord::net
