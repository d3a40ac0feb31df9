// The event table: events are aclrtEvent from aclrtCreateEventExWithFlag. In contrast to the older kind, which must be
// reset between records, a record replaces the previous one, and a wait refers to the record at the time of its call.
// The features of an event are fixed at its creation: streams can wait for it (SYNC), the host can query it
// (STREAM_PROGRESS), it has a time (TIME_LINE).
#pragma once

#include "backends/ascend/device.h"

namespace concord::ascend {

class Events {
 public:
  explicit Events(Devices& devices) : devices_(devices) {}

  concord_event create(int32_t device, uint32_t flags);
  void destroy(concord_event event);
  void record(concord_event event, concord_stream stream);
  int32_t query(concord_event event);
  void synchronize(concord_event event);
  double elapsed(concord_event start, concord_event end);

 private:
  struct Known {
    int32_t device;
    bool timing;
  };

  // Returns the device of |event| if this plugin has created it, else the thread's device.
  int32_t device_of(concord_event event);
  bool is_done(concord_event event);

  Devices& devices_;
  sdk::Handles<concord_event, Known> live_{"event"};
};

}  // namespace concord::ascend
