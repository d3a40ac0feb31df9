// Checks --rdzv_backend and opens what it names.
#pragma once

#include <memory>

#include "core/launch/job/leader_store.h"
#include "core/mesh/rendezvous_options.h"

namespace concord {

// Throws ConfigError if an option is invalid or missing, if this program was built without libcurl, or if the job
// cannot change its leader: |can_recover| is whether it runs on several machines with max_restarts.
void check(const RendezvousOptions& options, bool can_recover);

// Opens the store of a job in etcd. Its record outlives a leader by |rejoin_seconds| and some time for an election.
std::unique_ptr<LeaderStore> open_etcd(const RendezvousOptions& options, double rejoin_seconds);

}  // namespace concord
