// An asynchronous device-to-host copy that does not wait for work enqueued after it, unlike item().
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
      : on_host_(tensor.to(at::kCPU, /*non_blocking=*/true)) {  // into pinned memory, which libtorch caches
    if (tensor.is_cpu()) return;
    copied_.emplace(device);
    copied_->record(torch_stream(device));
  }

  // Waits: until the copy is done.
  const at::Tensor& wait() const {
    if (copied_) copied_->synchronize();
    return on_host_;
  }

 private:
  at::Tensor on_host_;
  std::optional<Event> copied_;
};

}  // namespace concord
