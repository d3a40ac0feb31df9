#include "backends/ascend/sim/runtime/stream.h"

#include "backends/ascend/sim/runtime/capture.h"

namespace concord::ascend::sim {

void Stream::submit(Task task) {
  if (const auto capturing = capture()) return capturing->add(*this, std::move(task));
  queue_->push(std::move(task));
}

std::shared_ptr<Capture> Stream::capture() const {
  const std::lock_guard lock(mutex_);
  return capture_;
}

void Stream::set_capture(std::shared_ptr<Capture> capture) {
  const std::lock_guard lock(mutex_);
  capture_ = std::move(capture);
}

void Stream::require_not_captured(const char* doing) const {
  const auto capturing = capture();
  if (capturing == nullptr) return;
  capturing->spoil();
  fail(kRtStreamCaptured,
       text("%s is not possible while stream %d is captured; the capture is invalidated", doing, id_));
}

}  // namespace concord::ascend::sim
