#include "trainer/device_batch.h"

#include <ATen/ops/empty.h>
#include <sys/resource.h>

#include <cstring>

#include "core/torch/device.h"
#include "platform/cpp/event.hpp"
#include "platform/cpp/memory.hpp"

namespace concord {

std::vector<MicroBatch> to_device(const std::vector<MicroBatch>& batches, c10::Device device) {
  if (device.is_cpu()) return batches;
  std::vector<MicroBatch> moved = batches;
  for (MicroBatch& batch : moved) {
    batch.input_ids = batch.input_ids.to(device);
    batch.labels = batch.labels.to(device);  // not position_ids: the model reads their values before moving them
    if (batch.pixel_values.defined()) batch.pixel_values = batch.pixel_values.to(device);
  }
  return moved;
}

class BatchCopies::Impl {
 public:
  Impl(c10::Device device, const Device& platform_device) : device_(device), platform_device_(platform_device) {
    for (int i = 0; i < 2; ++i) sets_.push_back({{}, Event(platform_device_)});
  }

  ~Impl() {
    try {
      for (const PinnedSet& set : sets_) set.copied.synchronize();
    } catch (const Error&) {
      // The failed work was the last step's, which reported it.
    }
  }

  std::vector<MicroBatch> to_device(const std::vector<MicroBatch>& batches) {
    current_ = (current_ + 1) % sets_.size();
    sets_[current_].copied.synchronize();
    std::vector<MicroBatch> moved = batches;
    size_t buffer = 0;
    for (MicroBatch& batch : moved) {
      batch.input_ids = enqueue(batch.input_ids, buffer++);
      batch.labels = enqueue(batch.labels, buffer++);  // not position_ids, as above
      batch.pixel_values = enqueue(batch.pixel_values, buffer++);
    }
    sets_[current_].copied.record(torch_stream(platform_device_));
    return moved;
  }

 private:
  struct PinnedSet {
    std::vector<HostBuffer> buffers;
    Event copied;
  };

  at::Tensor enqueue(const at::Tensor& host, size_t buffer) {
    if (!host.defined() || host.device() == device_) return host;
    if (host.numel() == 0 || !host.device().is_cpu()) return host.to(device_);
    const auto bytes = static_cast<int64_t>(host.nbytes());
    const at::Tensor dense = host.contiguous();
    void* const pinned = memory(buffer, bytes);
    std::memcpy(pinned, dense.const_data_ptr(), static_cast<size_t>(bytes));
    const at::Tensor there = at::empty(host.sizes(), host.options().device(device_));
    copy(torch_stream(platform_device_), there.mutable_data_ptr(), pinned, bytes, CopyKind::kHostToDevice);
    return there;
  }

  void* memory(size_t buffer, int64_t bytes) {
    std::vector<HostBuffer>& buffers = sets_[current_].buffers;
    while (buffers.size() <= buffer) buffers.emplace_back(platform_device_.platform(), bytes);
    if (buffers[buffer].bytes() < bytes) buffers[buffer] = HostBuffer(platform_device_.platform(), bytes);
    return buffers[buffer].data();
  }

  const c10::Device device_;
  const Device platform_device_;
  std::vector<PinnedSet> sets_;
  size_t current_ = 0;
};

BatchCopies::BatchCopies(const ParallelContext& job) {
  if (!job.torch_device().is_cpu()) impl_ = std::make_unique<Impl>(job.torch_device(), job.device());
}
BatchCopies::~BatchCopies() = default;

std::vector<MicroBatch> BatchCopies::to_device(const std::vector<MicroBatch>& batches) {
  return impl_ ? impl_->to_device(batches) : batches;
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
