// The stream table: streams are cudaStream_t, so libtorch's streams can be passed in; null is the default stream of the
// calling thread's device. Streams created here and the default stream do not wait for each other
// (cudaStreamNonBlocking).
#pragma once

#include "backends/cuda/comm.h"
#include "backends/cuda/device.h"
#include "platform/sdk/handles.hpp"

namespace concord::cuda {

class Streams {
 public:
  Streams(Devices& devices, Communicators& communicators) : devices_(devices), communicators_(communicators) {}

  concord_stream create(int32_t device, int32_t priority);
  void destroy(concord_stream stream);
  // Throws also, once, the failure of a communicator that was used on |stream|.
  void synchronize(concord_stream stream);
  int32_t query(concord_stream stream);
  void wait_event(concord_stream stream, concord_event event);
  void priority_range(int32_t device, int32_t* out_least, int32_t* out_greatest);
  void launch_host(concord_stream stream, concord_host_function function, void* user);

 private:
  Devices& devices_;
  Communicators& communicators_;
  sdk::Handles<concord_stream> live_{"stream"};
};

}  // namespace concord::cuda
