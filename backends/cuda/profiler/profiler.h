// The profiler extension: NVTX ranges, which Nsight Systems and Nsight Compute show, and cudaProfilerStart/Stop.
#pragma once

#include "platform/sdk/plugin.hpp"

namespace concord::cuda {

class Profiler {
 public:
  void range_push(const char* name);
  void range_pop();
  void mark(const char* name);
  void start();
  void stop();
};

}  // namespace concord::cuda
