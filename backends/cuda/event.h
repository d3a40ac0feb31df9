// The event table: events are cudaEvent_t, without timing unless the flags request it.
#pragma once

#include "backends/cuda/device.h"
#include "platform/sdk/handles.hpp"

namespace concord::cuda {

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
  Devices& devices_;
  sdk::Handles<concord_event> live_{"event"};
};

}  // namespace concord::cuda
