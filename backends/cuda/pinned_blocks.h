// Large blocks of pinned host memory: mapped, touched by several threads and registered. cudaHostAlloc touches memory
// with one thread, under a lock of the driver: 0.4 s per GiB instead of 0.1 s.
// Threads: any thread, any time.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "backends/cuda/status.h"
#include "platform/base/thread_safety.hpp"

namespace concord::cuda {

class PinnedBlocks {
 public:
  // Returns null if the size is not one for this, or the system or the driver refuses: cudaHostAlloc then reports why.
  void* allocate(size_t bytes);
  // Returns false if |pointer| is not from allocate().
  bool release(void* pointer);

 private:
  std::mutex mutex_;  // guards bytes_
  std::map<void*, size_t> bytes_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord::cuda
