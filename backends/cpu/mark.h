// Records of events: a place in a queue, and the time at which it was reached. Threads: plain values.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

namespace concord::cpu {

// A place in a queue; with no queue it is reached: nothing was recorded, or it was on the null stream.
template <class Queue>
struct MarkOf {
  std::shared_ptr<Queue> queue;
  uint64_t ticket = 0;

  bool reached() const { return queue == nullptr || queue->reached(ticket); }
  void wait() const {
    if (queue != nullptr) queue->wait(ticket);
  }
};

// Nanoseconds of the steady clock at which a record was reached; 0: not yet.
using Stamp = std::atomic<int64_t>;

inline int64_t now_in_nanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace concord::cpu
