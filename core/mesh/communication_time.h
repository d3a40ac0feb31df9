// The time that a rank has been blocked by communication so far, to tell a slow rank from those that wait for it.
//
// Two clocks, because backends wait in two ways:
//   on the host    the time in Channel::wait. If libtorch computes on the calling thread (the cpu), there is no other
//                  waiting.
//   on the device  the duration of the calls on their stream, from the start of each on this rank to its end. The host
//                  does not wait, but a collective runs on the device until the slowest rank has joined. Recorded
//                  within Channel::kTick after the call has ended. Includes communication that overlaps with
//                  computation. Not measured if the plugin cannot (capability event.timing).
//
// Costs two clock readings per wait. Threads: any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace concord {

class CommunicationTime {
 public:
  using Duration = std::chrono::nanoseconds;

  // Adds the lifetime of this object to the time on the host. Does nothing if |time| is null.
  class HostWait {
   public:
    explicit HostWait(CommunicationTime* time) : time_(time) {
      if (time_ != nullptr) begin_ = Clock::now();
    }
    ~HostWait() {
      if (time_ != nullptr) add(time_->host_, Clock::now() - begin_);
    }
    HostWait(const HostWait&) = delete;
    HostWait& operator=(const HostWait&) = delete;

   private:
    CommunicationTime* time_;
    std::chrono::steady_clock::time_point begin_;
  };

  void add_on_device(Duration duration) { add(device_, duration); }

  Duration on_host() const { return Duration(host_.load(std::memory_order_relaxed)); }
  Duration on_device() const { return Duration(device_.load(std::memory_order_relaxed)); }

 private:
  using Clock = std::chrono::steady_clock;

  static void add(std::atomic<int64_t>& sum, Duration duration) {
    sum.fetch_add(duration.count(), std::memory_order_relaxed);
  }

  std::atomic<int64_t> host_ = 0;  // nanoseconds
  std::atomic<int64_t> device_ = 0;
};

}  // namespace concord
