// Micro-batches on the device that computes, and what is in that device's memory.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "core/models/micro_batch.h"

namespace concord {

// The batches themselves if they are already there. The host's tensors may be dropped. Waits: for the current stream,
// as copies from memory that is not pinned do.
std::vector<MicroBatch> to_device(const std::vector<MicroBatch>& batches, c10::Device device);

// The same without waiting, for the training loop: so the host prepares a step while the device still updates weights.
// Batches go through pinned memory, of which there are two sets. Threads: one at a time.
class BatchCopies {
 public:
  explicit BatchCopies(const ParallelContext& job);
  ~BatchCopies();  // waits for copies in flight
  BatchCopies(const BatchCopies&) = delete;
  BatchCopies& operator=(const BatchCopies&) = delete;

  // Waits: for the copies of the call before the last.
  std::vector<MicroBatch> to_device(const std::vector<MicroBatch>& batches);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;  // null where the device is the host
};

// The peak of this process if the device is the host, otherwise what all processes use of the device.
int64_t memory_in_use(const ParallelContext& job);

}  // namespace concord
