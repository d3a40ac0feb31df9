// The graph extension: CUDA graphs. A graph handle is a cudaGraphExec_t.
#pragma once

#include "backends/cuda/comm.h"
#include "platform/sdk/handles.hpp"

namespace concord::cuda {

class Graphs {
 public:
  explicit Graphs(Communicators& communicators) : communicators_(communicators) {}

  void begin_capture(concord_stream stream);
  concord_graph end_capture(concord_stream stream);
  void launch(concord_graph graph, concord_stream stream);
  void destroy(concord_graph graph);

 private:
  Communicators& communicators_;
  sdk::Handles<concord_graph> live_{"graph"};
};

}  // namespace concord::cuda
