// The event table: marks in streams. The contract of each method is in platform/abi/event.h.
#pragma once

#include "platform/abi/event.h"

namespace concord::null {

class Events {
 public:
  concord_event create(int32_t device, uint32_t flags);
  void destroy(concord_event event);
  void record(concord_event event, concord_stream stream);
  int32_t query(concord_event event);
  void synchronize(concord_event event);
  // optional: elapsed
};

}  // namespace concord::null
