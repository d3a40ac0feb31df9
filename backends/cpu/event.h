// The event table. A record is a place in a queue: the queue and the number of its tasks so far. So recording allocates
// nothing, waits keep the record that was current when they were made, and an event can be destroyed at any time.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "backends/cpu/handle_table.h"
#include "backends/cpu/mark.h"
#include "backends/cpu/queue.h"
#include "platform/abi/event.h"
#include "platform/base/thread_safety.hpp"

namespace concord::cpu {

class Devices;
class Streams;

using Mark = MarkOf<Queue>;

class Event {
 public:
  explicit Event(bool timing) : timing_(timing) {}

  void record(const std::shared_ptr<Queue>& queue);
  Mark mark() const;
  // Nanoseconds of the steady clock at which the newest record was reached. Throws FAILED_PRECONDITION if the event
  // has no timing, was not recorded, or its record is not reached; |which| names it in the message.
  int64_t reached_at(const char* which) const;

 private:
  const bool timing_;
  mutable std::mutex mutex_;  // guards all below
  bool recorded_ CONCORD_GUARDED_BY(mutex_) = false;
  Mark mark_ CONCORD_GUARDED_BY(mutex_);
  std::shared_ptr<Stamp> stamp_ CONCORD_GUARDED_BY(mutex_);  // shared with the task that sets it
};

class Events {
 public:
  Events(const Devices& devices, const Streams& streams) : devices_(devices), streams_(streams) {}

  concord_event create(int32_t device, uint32_t flags);
  void destroy(concord_event event);
  void record(concord_event event, concord_stream stream);
  int32_t query(concord_event event);
  void synchronize(concord_event event);
  double elapsed(concord_event start, concord_event end);

  // The newest record of |event|; throws if it is not an event.
  Mark mark_of(concord_event event) const { return events_.find(event).mark(); }

 private:
  const Devices& devices_;
  const Streams& streams_;
  HandleTable<concord_event, Event> events_{0xde, "event"};
};

}  // namespace concord::cpu
