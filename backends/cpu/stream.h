// The stream table. A stream is a Queue with its thread; the null stream runs work inline, on the calling thread,
// ordered with nothing else, and its failures are reported by the call itself.
//
// Work queued after a failure still runs; synchronize returns the first failure, once. destroy does not wait.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/cpu/handle_table.h"
#include "backends/cpu/queue.h"
#include "platform/abi/stream.h"
#include "platform/base/thread_safety.hpp"

namespace concord::cpu {

class Devices;
class Events;

class Streams {
 public:
  Streams(const Devices& devices, Events& events) : devices_(devices), events_(events) {}

  concord_stream create(int32_t device, int32_t priority);
  void destroy(concord_stream stream);
  void synchronize(concord_stream stream);
  int32_t query(concord_stream stream);
  void wait_event(concord_stream stream, concord_event event);
  void priority_range(int32_t device, int32_t* out_least, int32_t* out_greatest);
  void launch_host(concord_stream stream, concord_host_function function, void* user);

  // For the other tables. The queue of |stream|, null for the null stream; throws if it is not a stream.
  std::shared_ptr<Queue> queue_of(concord_stream stream) const {
    return stream == nullptr ? nullptr : queues_.share(stream);
  }

  // Throws if |stream| is not a stream, or not one of |device|. The null stream is every device's.
  void check_device(concord_stream stream, int32_t device) const;

  // Runs |work| in the order of |stream|.
  template <class Work>
  void submit(concord_stream stream, Work&& work) {
    if (stream == nullptr) return std::forward<Work>(work)();
    queues_.find(stream).push(Task(std::forward<Work>(work)));
  }

  // Waits for all work of |device|, that of destroyed streams too; throws the first failure found, and leaves it there
  // where the stream is still alive.
  void synchronize_device(int32_t device);

 private:
  void forget_done() CONCORD_REQUIRES(mutex_);

  const Devices& devices_;
  Events& events_;
  HandleTable<concord_stream, Queue> queues_{0xd5, "stream"};

  std::mutex mutex_;                                                       // guards all below
  std::vector<std::shared_ptr<Queue>> closed_ CONCORD_GUARDED_BY(mutex_);  // destroyed while they had work
};

}  // namespace concord::cpu
