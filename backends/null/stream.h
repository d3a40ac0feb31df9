// The stream table: queues of work. The contract of each method is in platform/abi/stream.h.
#pragma once

#include "platform/abi/stream.h"

namespace concord::null {

class Streams {
 public:
  concord_stream create(int32_t device, int32_t priority);
  void destroy(concord_stream stream);
  void synchronize(concord_stream stream);
  int32_t query(concord_stream stream);
  void wait_event(concord_stream stream, concord_event event);
  void priority_range(int32_t device, int32_t* out_least, int32_t* out_greatest);
  // optional: launch_host
};

}  // namespace concord::null
