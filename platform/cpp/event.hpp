// A mark in a stream that another stream or the host can wait for (platform/abi/event.h). Move-only.
// Threads: one at a time per event; done and synchronize from several threads at the same time are fine.
#pragma once

#include "platform/cpp/stream.hpp"

namespace concord {

enum class Timing : bool { kOff = false, kOn = true };

class Event : public Handle<concord_event, &concord_event_table::destroy> {
 public:
  explicit Event(Device device, Timing timing = Timing::kOff) : Event(device, create(device, timing), true) {}

  // An event that someone else owns; it must outlive this object.
  static Event borrow(Device device, concord_event native) { return {device, native, false}; }

  // Captures the work queued on |stream| so far; replaces an earlier record.
  void record(const Stream& stream) const { platform().call<&concord_event_table::record>(native(), stream.native()); }
  // Never waits. True if it was never recorded.
  bool done() const {
    int32_t done = 0;
    platform().call<&concord_event_table::query>(native(), &done);
    return done != 0;
  }
  // Waits: until the newest record was reached.
  void synchronize() const { platform().call<&concord_event_table::synchronize>(native()); }
  // Later work of |stream| starts only after the newest record.
  void make_wait(const Stream& stream) const { stream.wait(native()); }

  // Both with Timing::kOn, recorded and done.
  static double milliseconds_between(const Event& start, const Event& end) {
    double milliseconds = 0;
    start.platform().call<&concord_event_table::elapsed>(start.native(), end.native(), &milliseconds);
    return milliseconds;
  }

 private:
  Event(Device device, concord_event native, bool owned) : Handle(device, native, owned) {}

  static concord_event create(const Device& device, Timing timing) {
    concord_event event = nullptr;
    const uint32_t flags = timing == Timing::kOn ? CONCORD_EVENT_TIMING : 0u;
    device.platform().call<&concord_event_table::create>(device.index(), flags, &event);
    return event;
  }
};

}  // namespace concord
