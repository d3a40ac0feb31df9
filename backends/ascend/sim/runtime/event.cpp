#include "backends/ascend/sim/runtime/event.h"

#include "backends/ascend/sim/runtime/stream.h"

namespace concord::ascend::sim {
namespace {

std::atomic<int64_t> wait_timeout_seconds{0};

Clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  if (timeout.count() > 0) return Clock::now() + timeout;
  const int64_t seconds = wait_timeout_seconds.load();
  return seconds == 0 ? cpu::kNever : Clock::now() + std::chrono::seconds(seconds);
}

[[noreturn]] void fail_late_wait() {
  fail(abi::kRtTaskTimeout, "a stream waited longer for an event than aclrtSetOpWaitTimeout or its own limit allows");
}

constexpr uint32_t kKnownFlags =
    abi::kEventSync | abi::kEventStreamProgress | abi::kEventTimeLine | 0x10 | abi::kEventExternal | abi::kEventIpc;

}  // namespace

void set_event_wait_timeout(std::chrono::seconds timeout) { wait_timeout_seconds.store(timeout.count()); }

Event::Event(Kind kind, uint32_t flags, int32_t device, std::atomic<int32_t>* id_counter)
    : kind_(kind),
      flags_(flags),
      device_(device),
      id_counter_(id_counter),
      flag_(kind == Kind::kFlag ? std::make_shared<Flag>() : nullptr) {
  if (flags == 0 || (flags & ~kKnownFlags) != 0) {
    fail(abi::kRtParamInvalid,
         text("event flags 0x%x are unknown; there are SYNC (0x1), CAPTURE_STREAM_PROGRESS (0x2), "
              "TIME_LINE (0x8), EXTERNAL (0x20) and IPC (0x40)",
              flags));
  }
  if (kind == Kind::kFlag && has(abi::kEventSync)) take_id();
}

Event::~Event() {
  if (has_id_) id_counter_->fetch_sub(1);
}

// An event takes one of the device's ids: one with a flag when it is made, others when they are first recorded.
void Event::take_id() {
  if (has_id_ || !has(abi::kEventSync)) return;
  if (id_counter_->fetch_add(1) >= kMaxEvents) {
    id_counter_->fetch_sub(1);
    fail(abi::kRtNoEventResource, text("device %d has no event left: %d are in use", device_, kMaxEvents));
  }
  has_id_ = true;
}

void Event::record(const std::shared_ptr<Stream>& stream) {
  if (stream->device() != device_) {
    fail(abi::kRtStreamContext,
         text("an event of device %d cannot be recorded on a stream of device %d", device_, stream->device()));
  }
  const std::lock_guard lock(mutex_);
  if (const auto capture = stream->capture()) return record_in_capture(*capture, *stream);
  take_id();
  Mark mark{stream->queue(), 0};
  auto stamp = has(abi::kEventTimeLine) || flag_ != nullptr ? std::make_shared<Stamp>(0) : nullptr;
  if (stamp != nullptr) {
    mark.ticket = stream->queue()->push({"aclrtRecordEvent",
                                         [stamp, flag = flag_] {
                                           stamp->store(cpu::now_in_nanoseconds());
                                           if (flag == nullptr) return;
                                           flag->set.store(true);
                                           flag->changed.notify_all();
                                         },
                                         nullptr,
                                         {}});
  } else {
    mark.ticket = stream->queue()->pushed();
  }
  mark_ = std::move(mark);
  stamp_ = std::move(stamp);
  capture_ = nullptr;
  recorded_ = true;
}

void Event::record_in_capture(Capture& capture, const Stream& stream) {
  if (kind_ != Kind::kReusable) {
    fail(abi::kRtFeatureNotSupport, "only an event of aclrtCreateEventExWithFlag can be recorded in a capture");
  }
  capture_ = capture.shared_from_this();
  capture_clock_ = capture.clock_of(stream);
  mark_ = {};
  stamp_ = nullptr;
  recorded_ = true;
}

void Event::wait(const std::shared_ptr<Stream>& stream, std::chrono::milliseconds timeout) {
  if (!has(abi::kEventSync)) {
    fail(abi::kRtFeatureNotSupport, text("the event was created with the flags 0x%x, without ACL_EVENT_SYNC (0x1): no "
                                         "stream can wait for it",
                                         flags_));
  }
  if (kind_ == Kind::kFlag) return wait_for_flag(stream, timeout);
  wait_for_record(stream, timeout);
}

void Event::wait_for_record(const std::shared_ptr<Stream>& stream, std::chrono::milliseconds timeout) {
  Mark mark;
  {
    const std::lock_guard lock(mutex_);
    if (!recorded_) {
      if (kind_ == Kind::kReusable) return;
      fail(abi::kRtParamInvalid, "the event has not been recorded; an event of aclrtCreateEvent must be");
    }
    if (capture_ != nullptr && capture_->status() == abi::kCaptureActive) {
      return capture_->join(stream, capture_clock_);
    }
    mark = mark_;
  }
  if (const auto capture = stream->capture()) {
    capture->spoil();
    fail(kRtCaptureDependency, "a captured stream cannot wait for an event that is not part of the capture");
  }
  if (mark.reached() || mark.queue == stream->queue()) return;  // a stream is in order with itself
  auto given_up = std::make_shared<std::atomic<bool>>(false);
  stream->queue()->push({"aclrtStreamWaitEvent",
                         [mark, given_up, timeout] {
                           if (!mark.queue->wait_for(mark.ticket, *given_up, deadline_after(timeout))) fail_late_wait();
                         },
                         [mark, given_up] {
                           given_up->store(true);
                           mark.queue->wake();
                         },
                         {}});
}

void Event::wait_for_flag(const std::shared_ptr<Stream>& stream, std::chrono::milliseconds timeout) {
  stream->require_not_captured("waiting for an event of aclrtCreateEventWithFlag");
  auto given_up = std::make_shared<std::atomic<bool>>(false);
  flag_->waiting.fetch_add(1);
  // The count goes down with the task, whether it runs or is dropped.
  std::shared_ptr<Flag> counted(flag_.get(), [flag = flag_](Flag*) { flag->waiting.fetch_sub(1); });
  stream->queue()->push({"aclrtStreamWaitEvent",
                         [counted, given_up, timeout] {
                           const bool in_time = counted->changed.wait_until(
                               deadline_after(timeout), [&] { return counted->set.load() || given_up->load(); });
                           if (!in_time) fail_late_wait();
                         },
                         [counted, given_up] {
                           given_up->store(true);
                           counted->changed.notify_all();
                         },
                         {}});
}

void Event::reset(const std::shared_ptr<Stream>& stream) {
  if (kind_ != Kind::kFlag || !has(abi::kEventSync)) {
    fail(abi::kRtFeatureNotSupport,
         "only an event of aclrtCreateEventWithFlag with ACL_EVENT_SYNC can be reset; the others are recorded again");
  }
  stream->require_not_captured("resetting an event");
  stream->queue()->push({"aclrtResetEvent", [flag = flag_] { flag->set.store(false); }, nullptr, {}});
}

void Event::require_not_captured() const {
  if (capture_ == nullptr || capture_->status() == abi::kCaptureNone) return;
  fail(kRtEventCaptured, "the event's last record is part of a capture");
}

bool Event::query() const {
  const std::lock_guard lock(mutex_);
  require_not_captured();
  if (!recorded_) return kind_ == Kind::kReusable;
  // By the stamp too: a thread that waited for a flag must not find its record unfinished because the task has yet to
  // return.
  return mark_.reached() || (stamp_ != nullptr && stamp_->load() != 0);
}

bool Event::all_waits_done() const {
  if (kind_ == Kind::kReusable) {
    fail(abi::kRtFeatureNotSupport, "the waits for an event of aclrtCreateEventExWithFlag cannot be queried");
  }
  return flag_ == nullptr || flag_->waiting.load() == 0;
}

void Event::synchronize(int32_t timeout_ms) {
  Mark mark;
  {
    const std::lock_guard lock(mutex_);
    require_not_captured();
    if (!recorded_) return;
    mark = mark_;
  }
  if (mark.queue != nullptr) mark.queue->synchronize(mark.ticket, timeout_ms, abi::kRtEventSyncTimeout);
}

int64_t Event::reached_at(const char* which) const {
  const std::lock_guard lock(mutex_);
  if (!recorded_) fail(abi::kRtParamInvalid, text("the %s event was never recorded", which));
  if (!has(abi::kEventTimeLine)) {
    fail(abi::kRtEventTimestampInvalid, text("the %s event was created without ACL_EVENT_TIME_LINE (0x8)", which));
  }
  const int64_t reached = stamp_ == nullptr ? 0 : stamp_->load();
  if (reached == 0) fail(abi::kRtEventTimestampInvalid, text("the %s event has not been reached yet", which));
  return reached;
}

}  // namespace concord::ascend::sim
