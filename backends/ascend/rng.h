// The rng table: the numbers that platform/sdk/philox.hpp defines. ACL has no kernel that computes them, so the calling
// thread does (with helpers, for large requests), piece by piece into pinned host memory, and queues copies. The call
// takes as long as the host needs to compute, as the cpu plugin does; it never waits for the stream, and the copies
// overlap with the computing of the next piece. Threads: any thread, any time.
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
  // A piece of pinned memory, and the end of the copy that last read it.
  struct Piece {
    void* data;
    concord_event copied;
  };

  // A piece that no copy reads any more: the oldest one, or a new one while that is still in use.
  Piece take(int32_t device);
  void give(int32_t device, Piece piece);
  // Frees pieces that are no longer read, down to what is worth keeping.
  void trim(int32_t device);

  Devices& devices_;
  Memory& memory_;
  Events& events_;
  std::mutex mutex_;                                                        // guards pieces_
  std::map<int32_t, std::deque<Piece>> pieces_ CONCORD_GUARDED_BY(mutex_);  // by device, in the order of their use
};

}  // namespace concord::ascend
