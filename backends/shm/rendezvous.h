// How the ranks of a communicator find each other, knowing nothing but a unique id.
//
// Rank 0 listens on an abstract unix socket named after the first half of the id; the others connect to it, show the
// second half, and identify themselves. When all have joined, rank 0 creates the shared memory and passes it on. The
// kernel drops the socket with its process, so nothing is left behind. A name can be seen by every user of the host, so
// both sides check that the other is of the same user, and only processes that have the second half are admitted.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "backends/shm/communicator.h"
#include "backends/shm/segment.h"

namespace concord::shm {

struct Meeting {
  int32_t world = 0;
  int32_t rank = 0;
  const void* id = nullptr;  // kUniqueIdBytes bytes
  std::string name;          // of the communicator, for messages
  std::chrono::milliseconds timeout{};
  // Called periodically; throws when the rendezvous is cancelled. May be empty.
  std::function<void()> still_wanted;
};

// Waits until all ranks have joined and returns the memory they share, in which every rank's process is recorded.
// Fails, with the same message on every rank that has joined: INVALID_ARGUMENT if ranks disagree about the world or
// claim the same number, PEER_LOST if one exits meanwhile, TIMEOUT with the missing ranks, OUT_OF_MEMORY. A rank on a
// different host from the one that made the id fails immediately: UNAVAILABLE.
std::shared_ptr<Segment> meet(const Meeting& meeting);

}  // namespace concord::shm
