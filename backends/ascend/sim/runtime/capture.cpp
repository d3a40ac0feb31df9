#include "backends/ascend/sim/runtime/capture.h"

#include <algorithm>
#include <utility>

#include "backends/ascend/sim/runtime/stream.h"
#include "backends/ascend/sim/runtime/work_observer.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {
namespace {

// The captures that are on, for what they forbid other calls.
struct Active {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture>> captures CONCORD_GUARDED_BY(mutex);
  std::atomic<int> count{0};
};

Active& active() {
  static Active& instance = *new Active;
  return instance;
}

thread_local abi::aclmdlRICaptureMode thread_mode = abi::kCaptureGlobal;

void require_mode(abi::aclmdlRICaptureMode mode) {
  if (mode <= abi::kCaptureRelaxed) return;
  fail(abi::kRtParamInvalid,
       text("capture mode %u is unknown; there are 0 (global), 1 (thread) and 2 (relaxed)", mode));
}

}  // namespace

std::shared_ptr<Capture> Capture::begin(const std::shared_ptr<Stream>& origin, abi::aclmdlRICaptureMode mode) {
  require_mode(mode);
  if (origin->is_default()) fail(kRtCaptureImplicit, "a default stream cannot be captured");
  origin->require_not_captured("starting a capture");
  const std::shared_ptr<Capture> capture(new Capture(origin, mode));
  origin->set_capture(capture);
  const std::lock_guard lock(active().mutex);
  active().captures.push_back(capture);
  active().count.fetch_add(1);
  return capture;
}

std::shared_ptr<Capture> Capture::end(const std::shared_ptr<Stream>& origin) {
  const std::shared_ptr<Capture> capture = origin->capture();
  if (capture == nullptr) fail(kRtStreamNotCaptured, "the stream is not being captured");
  if (capture->origin_ != origin) fail(kRtCaptureUnmatched, "the capture was started on another stream");
  if (capture->mode_ != abi::kCaptureRelaxed && capture->thread_ != std::this_thread::get_id()) {
    fail(kRtCaptureWrongThread, "the capture was started by another thread, and its mode is not relaxed");
  }
  {
    const std::lock_guard lock(active().mutex);
    std::erase(active().captures, capture);
    active().count.fetch_sub(1);
  }
  abi::aclError code = abi::kAclSuccess;
  std::string why;
  capture->close(&code, &why);
  if (code != abi::kAclSuccess) fail(code, why);
  return capture;
}

// Sets the streams free and finds out whether the capture is whole.
void Capture::close(abi::aclError* out_code, std::string* out_why) {
  const std::shared_ptr<Stream> origin = std::move(origin_);
  const std::lock_guard lock(mutex_);
  ended_ = true;
  origin->set_capture(nullptr);
  for (const auto& stream : joined_) stream->set_capture(nullptr);
  if (spoilt_) {
    *out_code = kRtCaptureInvalidated;
    *out_why = "an operation that cannot be captured was called during the capture";
    return;
  }
  const ClockOfStreams& seen = clocks_[origin.get()];
  for (const auto& stream : joined_) {
    const auto known = seen.find(stream.get());
    const uint64_t last = clocks_[stream.get()][stream.get()];
    if (last == 0 || (known != seen.end() && known->second >= last)) continue;  // 0: it has only waited
    *out_code = kRtStreamUnjoined;
    *out_why = text(
        "stream %d joined the capture, and the stream that started it does not wait for its last work (piece %llu)",
        stream->id(), static_cast<unsigned long long>(last));
  }
  joined_.clear();
  clocks_.clear();
}

void Capture::require_allowed(const char* doing) {
  if (active().count.load() == 0 || thread_mode == abi::kCaptureRelaxed) return;
  const std::lock_guard lock(active().mutex);
  for (const auto& capture : active().captures) {
    const bool mine = capture->thread_ == std::this_thread::get_id();
    const bool is_bound_by_all = thread_mode == abi::kCaptureGlobal || mine;
    if ((capture->mode_ == abi::kCaptureGlobal && is_bound_by_all) ||
        (capture->mode_ == abi::kCaptureThreadLocal && mine)) {
      capture->spoil();
      fail(kRtCaptureModeNotSupport, text("%s is not possible while a stream is captured, unless the mode is relaxed; "
                                          "the capture is invalidated",
                                          doing));
    }
  }
}

abi::aclmdlRICaptureMode Capture::exchange_thread_mode(abi::aclmdlRICaptureMode mode) {
  require_mode(mode);
  return std::exchange(thread_mode, mode);
}

void Capture::add(const Stream& stream, Task task) {
  const std::lock_guard lock(mutex_);
  if (spoilt_ || ended_) fail(kRtCaptureInvalidated, "the capture is invalidated");
  ++clocks_[&stream][&stream];
  tasks_.push_back(std::move(task));
}

Capture::ClockOfStreams Capture::clock_of(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  return clocks_[&stream];
}

void Capture::join(const std::shared_ptr<Stream>& stream, const ClockOfStreams& clock) {
  {
    const std::lock_guard lock(mutex_);
    if (stream != origin_ && std::find(joined_.begin(), joined_.end(), stream) == joined_.end()) {
      joined_.push_back(stream);
    }
    ClockOfStreams& own = clocks_[stream.get()];
    for (const auto& [other, count] : clock) own[other] = std::max(own[other], count);
  }
  stream->set_capture(shared_from_this());
}

void Capture::spoil() {
  const std::lock_guard lock(mutex_);
  spoilt_ = true;
}

abi::aclmdlRICaptureStatus Capture::status() const {
  const std::lock_guard lock(mutex_);
  return ended_ ? abi::kCaptureNone : spoilt_ ? abi::kCaptureInvalidated : abi::kCaptureActive;
}

void Capture::run_on(Stream& stream) {
  if (status() != abi::kCaptureNone) fail(abi::kRtParamInvalid, "the model is still being captured");
  stream.submit({"aclmdlRIExecuteAsync",
                 [self = shared_from_this(), device = stream.device(), id = stream.id()]()
                     CONCORD_NO_THREAD_SAFETY_ANALYSIS {
                       for (const Task& task : self->tasks_) {  // constant once the capture has ended
                         Faults::sleep(task.fault.delay);
                         if (task.fault.code != 0) fail(task.fault.code, text("injected failure of %s", task.name));
                         const WorkScope scope(device, id);  // a piece of work each
                         task.run();
                       }
                     },
                 nullptr,
                 {}});
}

}  // namespace concord::ascend::sim
