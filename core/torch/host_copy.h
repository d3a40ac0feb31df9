// Numbers on their way from a device to the host, while the device goes on with what was enqueued after them. A plain
// item() would wait for that too.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/torch/device.h"
#include "platform/cpp/event.hpp"

namespace concord {

// Threads: one at a time.
class HostCopy {
 public:
  // Enqueues the copy on libtorch's current stream of |device|.
  HostCopy(const at::Tensor& tensor, const Device& device)
      : on_host_(tensor.to(at::kCPU, /*non_blocking=*/true)) {  // into pinned memory, which libtorch keeps
    if (tensor.is_cpu()) return;
    copied_.emplace(device);
    copied_->record(torch_stream(device));
  }

  // Waits: for the copy.
  const at::Tensor& wait() const {
    if (copied_) copied_->synchronize();
    return on_host_;
  }

 private:
  at::Tensor on_host_;
  std::optional<Event> copied_;
};

}  // namespace concord
