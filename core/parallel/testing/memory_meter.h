// For tests: measures libtorch's allocations on this thread.
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstdint>

namespace concord {

// Bytes that libtorch has allocated on this thread, and their maximum. Active while a c10::DebugInfoGuard of kind
// PROFILER_STATE holds it.
class MemoryMeter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    held += bytes;
    most = std::max(most, held);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t held = 0;
  int64_t most = 0;
};

}  // namespace concord
