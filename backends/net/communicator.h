// Communicators whose ranks may be on several hosts: shared memory inside a host, an engine for messages between hosts.
//
// Every reduction processes the ranks in order, as backends/shm does, so a layout gives the same bits on one host, on
// two, and in every run. Small reductions collect all values at one rank of each host, and these exchange one message
// each. Large reductions are split into slices, one for each rank of a host, and the sum of a slice goes from host to
// host in rank order, while the next slices follow; so the traffic of a link does not grow with the ranks of a host.
//
// Failures are as in backends/shm: a peer whose process exits is PEER_LOST within a second, a host that cannot be
// reached is PEER_LOST within kUnreachableAfter and a second, a silent one is TIMEOUT.
#pragma once

#include <memory>

#include "backends/shm/engine.h"

namespace concord::net {

// Joins as |rank| of |world|. Returns a communicator of backends/shm if |id| is not from create_id, or if all ranks are
// on one host. Waits: until all ranks have joined, or for the timeout.
std::unique_ptr<shm::Engine> connect(int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                                     const shm::Options& options);

}  // namespace concord::net
