// How the ranks of a job learn each other's platforms at the rendezvous.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "core/mesh/platform_map.h"
#include "core/mesh/store/store.h"

namespace concord {

struct OwnPlatform {
  int64_t rank = 0;
  int64_t world = 1;
  std::string name;
  bool is_chosen = false;  // by CONCORD_PLATFORM or a setting, not because it is the best with a device
};

// Writes this rank's platform. Call before rendezvous().
void announce_platform(Store& store, const OwnPlatform& own);

// Makes the platforms of all ranks known, and returns them; without names if all are the same. Call after rendezvous().
// Throws ConfigError, on all ranks, if platforms differ although not every rank has chosen its own: a machine whose
// driver is missing would otherwise train on its cpu. One store operation if all ranks have the same platform. Waits:
// for rank 0, at most |timeout|.
PlatformMap exchange_platforms(Store& store, const OwnPlatform& own, std::chrono::milliseconds timeout);

}  // namespace concord
