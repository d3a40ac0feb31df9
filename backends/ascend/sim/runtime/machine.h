// The simulated machine: its devices, their contexts, and which context is current on a thread.
//
// aclrtSetDevice retains the device's default context, which all threads share, and makes it current; aclrtResetDevice
// releases it; the last release waits for its work and frees its streams and the device's memory. A context that the
// program creates lives until it is destroyed. A thread whose current context is gone has none (107002).
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "backends/ascend/sim/runtime/event.h"
#include "backends/ascend/sim/runtime/handle_table.h"
#include "backends/ascend/sim/runtime/stream.h"

namespace concord::ascend::sim {

inline constexpr int32_t kMaxStreams = 1984;  // streams per device, including default streams

struct Context {
  int32_t device = 0;
  bool is_default = false;
  std::atomic<bool> alive{true};
  std::shared_ptr<Stream> default_stream;
  void* handle = nullptr;
};

class Machine {
 public:
  static Machine& instance();

  int32_t device_count() const { return static_cast<int32_t>(devices_.size()); }
  // Throws 107001.
  void require_device(int32_t device) const;

  void set_device(int32_t device);
  // Throws 107002 if it is not set.
  void reset_device(int32_t device, bool at_once);
  bool is_set(int32_t device);

  // Returns the calling thread's context; throws 107002 if it has none.
  std::shared_ptr<Context> current() const;
  void make_current(void* context);
  void* create_context(int32_t device);
  void destroy_context(void* context);

  void* create_stream();
  // Waits for the stream's work, or drops it if |by_force|.
  void destroy_stream(void* stream, bool by_force);
  // Returns the stream of a handle; null is the current context's default stream. Throws 107017 for an invalid handle,
  // 107003 if the stream does not belong to the current context.
  std::shared_ptr<Stream> stream(void* handle) const;
  // Like stream(), but accepts streams of any context.
  std::shared_ptr<Stream> any_stream(void* handle) const;

  void* create_event(Event::Kind kind, uint32_t flags);
  std::shared_ptr<Event> event(void* handle) const { return events_.share_locked(handle); }
  void destroy_event(void* handle) { events_.remove(handle); }

  // Returns all streams of |device|, of all contexts.
  std::vector<std::shared_ptr<Stream>> streams_of(int32_t device) const;
  void synchronize_device(int32_t device, int32_t timeout_ms);

  // Whether |device| may copy to and from |peer|.
  void enable_peer(int32_t device, int32_t peer, bool enabled);
  bool may_access(int32_t device, int32_t peer);

 private:
  struct Device {
    std::shared_ptr<Context> context;  // the default context, while retained
    int32_t retained = 0;
    std::atomic<int32_t> streams{0};
    std::atomic<int32_t> events{0};
    std::set<int32_t> peers;
  };

  Machine();
  // Called at exit: stops all streams, whose tasks would use destroyed objects.
  void stop_all();
  Device& device(int32_t number) { return *devices_[static_cast<size_t>(number)]; }
  std::shared_ptr<Context> make_context(int32_t device, bool is_default);
  void end_context(const std::shared_ptr<Context>& context);
  std::shared_ptr<Stream> make_stream(const Context* context, int32_t device, bool is_default);

  std::vector<std::unique_ptr<Device>> devices_;
  HandleTable<Context> contexts_{0x1c, "context"};
  HandleTable<Stream> streams_{0x15, "stream"};
  HandleTable<Event> events_{0x1e, "event"};
  std::atomic<int32_t> next_stream_id_{0};
  std::mutex mutex_;  // guards contexts and peers of the devices
};

inline Machine& machine() { return Machine::instance(); }

}  // namespace concord::ascend::sim
