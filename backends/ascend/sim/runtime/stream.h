// Streams: queues that belong to a context. Work submitted to a stream runs in order, on the stream's thread, or is
// recorded during a capture.
// Threads: any; the order of two concurrent calls is undefined.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "backends/ascend/sim/runtime/queue.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {

class Capture;
struct Context;

class Stream {
 public:
  Stream(const Context* context, int32_t device, int32_t id, bool is_default)
      : context_(context),
        device_(device),
        id_(id),
        is_default_(is_default),
        queue_(std::make_shared<Queue>(device, id)) {}
  ~Stream() { queue_->close(); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Returns the context for comparison only; it may have been destroyed.
  const Context* context() const { return context_; }
  int32_t device() const { return device_; }
  int32_t id() const { return id_; }
  bool is_default() const { return is_default_; }
  const std::shared_ptr<Queue>& queue() const { return queue_; }

  void submit(Task task);

  // Returns the capture that this stream takes part in; null if there is none.
  std::shared_ptr<Capture> capture() const;
  void set_capture(std::shared_ptr<Capture> capture);
  // Throws 107027 if the stream is being captured, and invalidates the capture: |doing| cannot be captured.
  void require_not_captured(const char* doing) const;

 private:
  const Context* const context_;
  const int32_t device_;
  const int32_t id_;
  const bool is_default_;
  const std::shared_ptr<Queue> queue_;

  mutable std::mutex mutex_;  // guards all below
  std::shared_ptr<Capture> capture_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord::ascend::sim
