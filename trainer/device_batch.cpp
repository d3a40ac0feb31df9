#include "trainer/device_batch.h"

#include <ATen/ops/empty.h>
#include <sys/resource.h>

#include <cstring>

#include "core/torch/device.h"

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

BatchCopies::BatchCopies(const ParallelContext& job) : device_(job.torch_device()), platform_device_(job.device()) {
  for (int i = 0; i < 2 && !device_.is_cpu(); ++i) sets_.push_back({{}, Event(platform_device_)});
}

BatchCopies::~BatchCopies() {
  try {
    for (const PinnedSet& set : sets_) set.copied.synchronize();
  } catch (const Error&) {
    // The failed work was the last step's, which reported it.
  }
}

std::vector<MicroBatch> BatchCopies::to_device(const std::vector<MicroBatch>& batches) {
  if (device_.is_cpu()) return batches;
  current_ = (current_ + 1) % sets_.size();
  sets_[current_].copied.synchronize();
  std::vector<MicroBatch> moved = batches;
  size_t buffer = 0;
  for (MicroBatch& batch : moved) {
    batch.input_ids = enqueue(batch.input_ids, buffer++);
    batch.labels = enqueue(batch.labels, buffer++);  // not position_ids, as above
  }
  sets_[current_].copied.record(torch_stream(platform_device_));
  return moved;
}

at::Tensor BatchCopies::enqueue(const at::Tensor& host, size_t buffer) {
  if (!host.defined() || host.device() == device_) return host;
  if (host.numel() == 0 || !host.device().is_cpu()) return host.to(device_);
  std::vector<HostBuffer>& buffers = sets_[current_].buffers;
  const auto bytes = static_cast<int64_t>(host.nbytes());
  const at::Tensor dense = host.contiguous();
  if (buffer == buffers.size()) buffers.emplace_back(platform_device_.platform(), bytes);
  if (buffers[buffer].bytes() < bytes) buffers[buffer] = HostBuffer(platform_device_.platform(), bytes);
  std::memcpy(buffers[buffer].data(), dense.const_data_ptr(), static_cast<size_t>(bytes));
  const at::Tensor there = at::empty(host.sizes(), host.options().device(device_));
  copy(torch_stream(platform_device_), there.mutable_data_ptr(), buffers[buffer].data(), bytes,
       CopyKind::kHostToDevice);
  return there;
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
