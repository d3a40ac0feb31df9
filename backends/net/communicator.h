// Communicators whose ranks may be on several hosts: shared memory inside a host, an engine for messages between hosts.
//
// Every reduction processes the ranks in order, as backends/shm does: the same layout gives the same bits on one
// host, on two, and in every run. Small ones collect all ranks' values at one rank of each host, which are one message
// away from each other. Large ones are cut into slices, one for each rank of a host, and the sum of a slice goes from
// host to host in rank order, while the next slices follow; so what a link carries does not grow with the ranks of a
// host.
//
// Failures are as in backends/shm: a peer whose process exits is PEER_LOST within a second, a host that cannot be
// reached is PEER_LOST within kUnreachableAfter and a second, a silent one is TIMEOUT.
#pragma once

#include <memory>

#include "backends/shm/engine.h"

namespace concord::net {

// Joins as |rank| of |world|. Waits: until all ranks have, or the timeout. An id that was not made by create_id, and
// one whose ranks turn out to be on one host, gives a communicator of backends/shm.
std::unique_ptr<shm::Engine> connect(int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                                     const shm::Options& options);

}  // namespace concord::net
