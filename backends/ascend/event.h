// The event table: events are aclrtEvent, made by aclrtCreateEventExWithFlag, the kind whose record replaces the former
// one and whose waits keep the record they found; the older kind has to be reset in between. What an event can do is
// fixed when it is created: other streams wait for it (SYNC), the host queries it (STREAM_PROGRESS), it has a time
// (TIME_LINE).
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

  // The device of |event|: known for events of this plugin, else the thread's.
  int32_t device_of(concord_event event);
  bool is_done(concord_event event);

  Devices& devices_;
  sdk::Handles<concord_event, Known> live_{"event"};
};

}  // namespace concord::ascend
