#include "trainer/device_batch.h"

#include <sys/resource.h>

namespace concord {

std::vector<MicroBatch> to_device(const std::vector<MicroBatch>& batches, c10::Device device) {
  if (device.is_cpu()) return batches;
  std::vector<MicroBatch> moved = batches;
  for (MicroBatch& batch : moved) {
    batch.input_ids = batch.input_ids.to(device);
    batch.labels = batch.labels.to(device);  // not position_ids: the model reads their values before moving them
  }
  return moved;
}

int64_t memory_in_use(const ParallelContext& job) {
  if (!job.torch_device().is_cpu()) {
    const MemoryInfo memory = job.device().memory();
    return memory.total_bytes - memory.free_bytes;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace concord
