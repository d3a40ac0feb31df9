// The stream table: streams are aclrtStream, so libtorch's streams can be passed in. All tables reject ACL's null
// stream, because HCCL does.
#pragma once

#include "backends/ascend/comm.h"
#include "backends/ascend/device.h"

namespace concord::ascend {

class Streams {
 public:
  Streams(Devices& devices, Communicators& communicators) : devices_(devices), communicators_(communicators) {}

  concord_stream create(int32_t device, int32_t priority);
  // Waits: for queued work. ACL's own destroy waits too, but that is not documented for every release.
  void destroy(concord_stream stream);
  // Also records a failure in the communicators that were used on |stream|.
  void synchronize(concord_stream stream);
  int32_t query(concord_stream stream);
  void wait_event(concord_stream stream, concord_event event);
  void priority_range(int32_t device, int32_t* out_least, int32_t* out_greatest);
  // Throws UNIMPLEMENTED before CANN 8.5.
  void launch_host(concord_stream stream, concord_host_function function, void* user);

 private:
  Devices& devices_;
  Communicators& communicators_;
};

}  // namespace concord::ascend
