// The rng table: the numbers that platform/sdk/philox.hpp defines. ACL has no kernel for them, so the calling thread
// (with helpers, for large requests) computes them piece by piece into pinned host memory and queues copies, which
// overlap with the computation of the next piece. A call takes as long as the computation on the host; it never waits
// for the stream. Threads: any thread, any time.
#pragma once

#include <deque>
#include <map>
#include <mutex>

#include "backends/ascend/event.h"
#include "backends/ascend/memory.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend {

class Rng {
 public:
  Rng(Devices& devices, Memory& memory, Events& events) : devices_(devices), memory_(memory), events_(events) {}

  void fill(const concord_rng_request* request, concord_stream stream);

 private:
  // A piece of pinned memory, and an event after the last copy from it.
  struct Piece {
    void* data;
    concord_event copied;
  };

  // Returns a piece that no copy reads: the oldest one, or a new one if that is still in use.
  Piece take(int32_t device);
  void give(int32_t device, Piece piece);
  // Frees pieces that no copy reads, except as many as are worth keeping.
  void trim(int32_t device);

  Devices& devices_;
  Memory& memory_;
  Events& events_;
  std::mutex mutex_;                                                        // guards pieces_
  std::map<int32_t, std::deque<Piece>> pieces_ CONCORD_GUARDED_BY(mutex_);  // by device, in the order of their use
};

}  // namespace concord::ascend
