#include "backends/cpu/event.h"

#include "backends/cpu/device.h"
#include "backends/cpu/stream.h"
#include "platform/sdk/checks.hpp"

namespace concord::cpu {

void Event::record(const std::shared_ptr<Queue>& queue) {
  auto stamp = timing_ ? std::make_shared<Stamp>(queue == nullptr ? now_in_nanoseconds() : 0) : nullptr;
  Mark mark;
  if (queue != nullptr && timing_) {
    mark = {queue, queue->push(Task([stamp] { stamp->store(now_in_nanoseconds()); }))};
  } else if (queue != nullptr) {
    mark = {queue, queue->pushed()};
  }
  const std::lock_guard lock(mutex_);
  mark_ = std::move(mark);
  stamp_ = std::move(stamp);
  recorded_ = true;
}

Mark Event::mark() const {
  const std::lock_guard lock(mutex_);
  return mark_;
}

int64_t Event::reached_at(const char* which) const {
  const std::lock_guard lock(mutex_);
  const char* why = !timing_           ? "was created without CONCORD_EVENT_TIMING"
                    : !recorded_       ? "was never recorded"
                    : !mark_.reached() ? "was recorded but not reached yet; synchronize it first"
                                       : nullptr;
  if (why != nullptr) sdk::fail(CONCORD_STATUS_FAILED_PRECONDITION, sdk::text("the %s event %s", which, why));
  return stamp_->load();
}

concord_event Events::create(int32_t device, uint32_t flags) {
  devices_.check(device);
  sdk::check_event_flags(flags);
  return events_.insert(std::make_shared<Event>((flags & CONCORD_EVENT_TIMING) != 0));
}

void Events::destroy(concord_event event) { events_.remove(event); }

void Events::record(concord_event event, concord_stream stream) {
  events_.find(event).record(streams_.queue_of(stream));
}

int32_t Events::query(concord_event event) { return mark_of(event).reached() ? 1 : 0; }

void Events::synchronize(concord_event event) { mark_of(event).wait(); }

double Events::elapsed(concord_event start, concord_event end) {
  const int64_t from = events_.find(start).reached_at("start");
  const int64_t to = events_.find(end).reached_at("end");
  return static_cast<double>(to - from) * 1e-6;
}

}  // namespace concord::cpu
