// Copies micro-batches to the device, and reports the memory in use there.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "core/models/micro_batch.h"

namespace concord {

// Returns copies of |batches| on |device|, or the batches themselves if they are on it. The tensors on the host may be
// released. Waits: for the current stream, as copies from pageable memory do.
std::vector<MicroBatch> to_device(const std::vector<MicroBatch>& batches, c10::Device device);

// Like to_device(), but without waiting, so that the host prepares a step while the device still updates weights.
// Copies go through two sets of pinned buffers. Threads: one at a time.
class BatchCopies {
 public:
  explicit BatchCopies(const ParallelContext& job);
  ~BatchCopies();  // waits for copies in flight
  BatchCopies(const BatchCopies&) = delete;
  BatchCopies& operator=(const BatchCopies&) = delete;

  // Waits: for the copies of the second-to-last call.
  std::vector<MicroBatch> to_device(const std::vector<MicroBatch>& batches);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;  // null if the device is the host
};

// Returns the peak memory of this process if the device is the host, otherwise the device memory in use by all
// processes.
int64_t memory_in_use(const ParallelContext& job);

}  // namespace concord
