// A queue of work on a device (platform/abi/stream.h). Move-only.
// Threads: any thread; calls on one stream take effect in the order they were made.
#pragma once

#include "platform/cpp/handle.hpp"

namespace concord {

class Stream : public Handle<concord_stream, &concord_stream_table::destroy> {
 public:
  struct PriorityRange {
    int32_t least;
    int32_t greatest;  // the most urgent; a number not above |least|
  };

  explicit Stream(Device device, int32_t priority = 0) : Stream(device, create(device, priority), true) {}

  // A stream that someone else owns, for example libtorch; it must outlive this object.
  static Stream borrow(Device device, concord_stream native) { return {device, native, false}; }
  // The device's default stream (null). The cpu plugin runs its work inline, on the calling thread.
  static Stream of_device(Device device) { return borrow(device, nullptr); }

  static PriorityRange priority_range(Device device) {
    PriorityRange range{};
    device.platform().call<&concord_stream_table::priority_range>(device.index(), &range.least, &range.greatest);
    return range;
  }

  // Waits: until everything queued so far is done. Throws the first error of that work, once.
  void synchronize() const { platform().call<&concord_stream_table::synchronize>(native()); }
  // Never waits.
  bool done() const {
    int32_t done = 0;
    platform().call<&concord_stream_table::query>(native(), &done);
    return done != 0;
  }
  // Later work starts only after the newest record of |event| (see event.hpp).
  void wait(concord_event event) const { platform().call<&concord_stream_table::wait_event>(native(), event); }
  // Enqueues |function|(|user|), which must not call into the platform and must not throw.
  void launch_host(concord_host_function function, void* user) const {
    platform().call<&concord_stream_table::launch_host>(native(), function, user);
  }

 private:
  Stream(Device device, concord_stream native, bool owned) : Handle(device, native, owned) {}

  static concord_stream create(const Device& device, int32_t priority) {
    concord_stream stream = nullptr;
    device.platform().call<&concord_stream_table::create>(device.index(), priority, &stream);
    return stream;
  }
};

}  // namespace concord
