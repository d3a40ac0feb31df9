// Micro-batches on the device that computes, and what is in that device's memory.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "core/models/micro_batch.h"

namespace concord {

// The batches themselves if they are already there. Enqueues; the host's tensors may be dropped.
std::vector<MicroBatch> to_device(const std::vector<MicroBatch>& batches, c10::Device device);

// The peak of this process if the device is the host, otherwise what all processes use of the device.
int64_t memory_in_use(const ParallelContext& job);

}  // namespace concord
