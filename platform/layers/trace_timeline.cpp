#include "platform/layers/trace_timeline.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "platform/loader/host.h"
#include "platform/loader/text.h"

namespace concord::layers {
namespace {

using loader::cat;

constexpr int32_t kFirstTrack = 1'000'000;  // no thread has such a number by default
constexpr size_t kResolveEvery = 64;

bool can_time(const concord_core_table& core) {
  for (int64_t i = 0; i < core.capability_count; ++i) {
    if (std::strcmp(core.capabilities[i].name, CONCORD_CAP_EVENT_TIMING) == 0) return core.capabilities[i].value != 0;
  }
  return false;
}

}  // namespace

Timeline::Timeline(const loader::Tables& tables, TraceFile& file)
    : tables_(tables), file_(file), timing_(can_time(tables.core)) {}

void Timeline::stream_created(concord_stream stream, int32_t device) {
  const std::lock_guard lock(mutex_);
  devices_[stream] = device;
}

void Timeline::stream_destroyed(concord_stream stream) {
  const std::lock_guard lock(mutex_);
  devices_.erase(stream);
}

int32_t Timeline::device_of(concord_stream stream) {
  if (const auto known = devices_.find(stream); known != devices_.end()) return known->second;
  int32_t device = 0;  // someone else's stream, or null: the thread's device is the best guess
  if (tables_.device.get_current(tables_.device.self, &device) != CONCORD_STATUS_OK) return 0;
  return device;
}

// An event whose moment is known on the host's clock too: recorded on a stream that has nothing else to do.
concord_event Timeline::base_event(int32_t device, double* out_us) {
  const concord_event_table& events = tables_.event;
  const concord_stream_table& streams = tables_.stream;
  concord_event event = nullptr;
  concord_stream stream = nullptr;
  if (events.create(events.self, device, CONCORD_EVENT_TIMING, &event) != CONCORD_STATUS_OK) return nullptr;
  bool good = streams.create(streams.self, device, 0, &stream) == CONCORD_STATUS_OK;
  if (good) {
    good = events.record(events.self, event, stream) == CONCORD_STATUS_OK &&
           events.synchronize(events.self, event) == CONCORD_STATUS_OK;
    *out_us = TraceFile::now();
    streams.destroy(streams.self, stream);
  }
  if (!good) events.destroy(events.self, event);
  return good ? event : nullptr;
}

Timeline::DeviceClock& Timeline::clock_of(int32_t device) {
  const auto [entry, is_new] = clocks_.try_emplace(device);
  if (is_new) {
    entry->second.base = base_event(device, &entry->second.base_us);
    if (entry->second.base == nullptr) {
      loader::log(CONCORD_LOG_WARN, "trace", cat("device ", device, " cannot be timed: ", loader::take_error_detail()));
    }
  }
  return entry->second;
}

concord_event Timeline::take_event(int32_t device) {
  DeviceClock& clock = clocks_[device];
  concord_event event = nullptr;
  if (!clock.spare.empty()) {
    event = clock.spare.back();
    clock.spare.pop_back();
  } else if (tables_.event.create(tables_.event.self, device, CONCORD_EVENT_TIMING, &event) != CONCORD_STATUS_OK) {
    return nullptr;
  }
  return event;
}

Timeline::Mark Timeline::begin(concord_stream stream) {
  if (!timing_) return {};
  const std::lock_guard lock(mutex_);
  if (pending_.size() >= kMaxPending) resolve_locked();
  if (pending_.size() >= kMaxPending) {
    ++left_out_;
    return {};
  }
  Mark mark{nullptr, device_of(stream)};
  if (clock_of(mark.device).base == nullptr) return {};
  mark.start = take_event(mark.device);
  if (mark.start != nullptr && tables_.event.record(tables_.event.self, mark.start, stream) != CONCORD_STATUS_OK) {
    clocks_[mark.device].spare.push_back(mark.start);
    mark.start = nullptr;
  }
  return mark;
}

void Timeline::end(const Mark& mark, concord_stream stream, bool queued, const char* name,
                   const std::string& arguments) {
  if (mark.start == nullptr) return;
  const std::lock_guard lock(mutex_);
  DeviceClock& clock = clocks_[mark.device];
  concord_event stop = queued ? take_event(mark.device) : nullptr;
  if (stop == nullptr || tables_.event.record(tables_.event.self, stop, stream) != CONCORD_STATUS_OK) {
    clock.spare.push_back(mark.start);
    if (stop != nullptr) clock.spare.push_back(stop);
    return;
  }
  pending_.push_back({mark.device, track_of(stream, mark.device), mark.start, stop, name, arguments});
  if (++ended_ % kResolveEvery == 0) resolve_locked();
}

// Streams become rows of their own below the threads of the host.
int32_t Timeline::track_of(concord_stream stream, int32_t device) {
  const auto next = kFirstTrack + static_cast<int32_t>(tracks_.size());
  const auto [entry, is_new] = tracks_.try_emplace({stream, device}, next);
  if (is_new) {
    std::string name = cat(tables_.core.name, " device ", device, ", stream ");
    loader::append_pointer(name, stream);
    file_.add(cat("{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":", static_cast<int>(getpid()), ",\"tid\":", next,
                  ",\"args\":{\"name\":", json_string(name), "}}"));
  }
  return entry->second;
}

bool Timeline::write_if_done(const Pending& pending) {
  const concord_event_table& events = tables_.event;
  int32_t done = 0;
  const bool known = events.query(events.self, pending.stop, &done) == CONCORD_STATUS_OK;
  if (known && done == 0) return false;
  const DeviceClock& clock = clocks_[pending.device];
  double start = 0;
  double length = 0;
  const bool timed = known && events.elapsed(events.self, clock.base, pending.start, &start) == CONCORD_STATUS_OK &&
                     events.elapsed(events.self, pending.start, pending.stop, &length) == CONCORD_STATUS_OK;
  if (!timed) {
    ++left_out_;
    return true;
  }
  char times[96];
  std::snprintf(times, sizeof times, "\"ts\":%.3f,\"dur\":%.3f", clock.base_us + start * 1e3, length * 1e3);
  file_.add(cat("{\"name\":", json_string(pending.name),
                ",\"cat\":\"device\",\"ph\":\"X\",\"pid\":", static_cast<int>(getpid()), ",\"tid\":", pending.track,
                ",", times, ",\"args\":", pending.arguments, "}"));
  return true;
}

void Timeline::resolve_locked() {
  std::deque<Pending> later;
  for (Pending& pending : pending_) {
    if (write_if_done(pending)) {
      DeviceClock& clock = clocks_[pending.device];
      clock.spare.push_back(pending.start);
      clock.spare.push_back(pending.stop);
    } else {
      later.push_back(std::move(pending));
    }
  }
  pending_.swap(later);
}

void Timeline::resolve() {
  const std::lock_guard lock(mutex_);
  resolve_locked();
}

size_t Timeline::left_out() const {
  const std::lock_guard lock(mutex_);
  return left_out_ + pending_.size();
}

}  // namespace concord::layers
