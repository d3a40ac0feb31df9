// The validate layer's records of a plugin's objects (validate.h): which are alive, on which device, and which queued
// work still uses which memory. Threads: any.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "platform/base/thread_safety.hpp"
#include "platform/layers/allocations.h"
#include "platform/layers/lifetimes.h"
#include "platform/loader/slots.h"

namespace concord::layers {

class LiveObjects {
 public:
  explicit LiveObjects(const loader::Tables& next);

  const loader::Tables& next() const { return next_; }

  // Lists what is still alive, comma-separated; empty if nothing is.
  std::string leaks();

 protected:
  struct StreamInfo {
    int32_t device;
  };
  struct EventInfo {
    int32_t device;
    bool timing;
    bool recorded;
  };
  struct CommInfo {
    int32_t device;
    int32_t rank;
    int32_t size;
    std::shared_ptr<std::atomic<bool>> busy = std::make_shared<std::atomic<bool>>(false);
  };

  // The memory, stream and communicator that a call uses.
  struct Work {
    std::vector<Range> ranges = {};
    bool queued = false;  // on |stream|; otherwise it is done when the call returns
    concord_stream stream = nullptr;
    std::shared_ptr<std::atomic<bool>> comm_busy = nullptr;  // flag of the communicator, for its operations
  };
  // A communicator's turn: given back at the end of the call.
  using Turn = std::unique_ptr<std::atomic<bool>, void (*)(std::atomic<bool>*)>;

  // Removes |handle| before the call: afterwards the address may already belong to another object.
  template <class Info, class Next>
  concord_status end_around(Lifetimes<Info>& lifetimes, const void* handle, const Next& call_next) {
    Info info = [&] {
      const std::lock_guard lock(mutex_);
      return lifetimes.end(handle);
    }();
    const concord_status status = call_next();
    if (status != CONCORD_STATUS_OK) {
      const std::lock_guard lock(mutex_);
      lifetimes.begin(handle, std::move(info));
    }
    return status;
  }
  // Memory in the quarantine is released before the device counts as full.
  template <class Next>
  concord_status allocate_with_quarantine(const Next& call_next) {
    const concord_status status = call_next();
    return status == CONCORD_STATUS_OUT_OF_MEMORY && give_back_quarantine() ? call_next() : status;
  }
  concord_status release(Allocation::Kind kind, int32_t device, void* pointer);
  void end_stream_ordered(int32_t device, void* pointer, concord_stream stream);
  bool give_back_quarantine();
  void give_back(const std::vector<Allocation>& blocks);

  Turn begin_work(const Work& work);
  void note_uses(const Work& work, const char* call);
  void note_use_locked(Allocation& block, concord_stream stream, const char* call) CONCORD_REQUIRES(mutex_);
  void check_unused_locked(Allocation& block) CONCORD_REQUIRES(mutex_);
  void drop_uses_locked(Allocation& block) CONCORD_REQUIRES(mutex_);
  void add_allocation(Allocation::Kind kind, int32_t device, void* pointer, int64_t bytes);
  CommInfo comm_info(concord_comm comm);
  int32_t device_of_locked(concord_stream stream) CONCORD_REQUIRES(mutex_);  // -1: unknown
  int32_t device_of(concord_stream stream);
  void check_same_device(concord_stream stream, int32_t device, const char* whose);
  Work comm_work(const CommInfo& info, concord_stream stream, std::vector<Range> ranges);
  int32_t device_count();
  int64_t capability(const char* name) const;

  const loader::Tables next_;
  const bool foreign_handles_;  // others make streams and events of this device too
  const bool null_stream_;
  std::mutex mutex_;
  Lifetimes<StreamInfo> streams_ CONCORD_GUARDED_BY(mutex_){"stream"};
  Lifetimes<EventInfo> events_ CONCORD_GUARDED_BY(mutex_){"event"};
  Lifetimes<CommInfo> comms_ CONCORD_GUARDED_BY(mutex_){"communicator"};
  Allocations allocations_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord::layers
