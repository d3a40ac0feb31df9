// The graph extension: work captured by aclmdlRICaptureBegin. A graph handle is an aclmdlRI. Offered only if CANN has
// the functions.
#pragma once

#include "backends/ascend/comm.h"
#include "backends/ascend/device.h"

namespace concord::ascend {

class Graphs {
 public:
  Graphs(Devices& devices, Communicators& communicators) : devices_(devices), communicators_(communicators) {}

  // Whether CANN can capture.
  static bool available(const Acl& acl);

  void begin_capture(concord_stream stream);
  concord_graph end_capture(concord_stream stream);
  void launch(concord_graph graph, concord_stream stream);
  void destroy(concord_graph graph);

 private:
  Devices& devices_;
  Communicators& communicators_;
  sdk::Handles<concord_graph, int32_t> live_{"graph"};  // with the device of each
};

}  // namespace concord::ascend
