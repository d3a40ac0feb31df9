// The stream table: streams are aclrtStream, so those of libtorch can be passed in. All tables reject ACL's null
// stream, because HCCL does.
#pragma once

#include "backends/ascend/comm.h"
#include "backends/ascend/device.h"

namespace concord::ascend {

class Streams {
 public:
  Streams(Devices& devices, Communicators& communicators) : devices_(devices), communicators_(communicators) {}

  concord_stream create(int32_t device, int32_t priority);
  // Waits: for queued work. ACL's own destroy does too, but does not promise it for every release.
  void destroy(concord_stream stream);
  // Also makes a communicator that was used on |stream| take note of a failure.
  void synchronize(concord_stream stream);
  int32_t query(concord_stream stream);
  void wait_event(concord_stream stream, concord_event event);
  void priority_range(int32_t device, int32_t* out_least, int32_t* out_greatest);
  // UNIMPLEMENTED before CANN 8.5.
  void launch_host(concord_stream stream, concord_host_function function, void* user);

 private:
  Devices& devices_;
  Communicators& communicators_;
};

}  // namespace concord::ascend
