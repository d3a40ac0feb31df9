// Defects of the stream and event tables.
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "tests/mutants/mutant.h"

namespace concord::mutants {
namespace {

void pause_briefly() { std::this_thread::sleep_for(std::chrono::microseconds(100)); }

// ---- waits that a host function does by polling, because no real stream has these defects

struct PolledEvent {
  std::mutex mutex;
  concord_event event;
  bool destroyed = false;

  bool done() {
    const std::lock_guard lock(mutex);
    if (destroyed) return true;
    int32_t reached = 1;
    base().event.query(base().event.self, event, &reached);
    return reached != 0;
  }
};

std::mutex polled_mutex;
std::map<concord_event, std::shared_ptr<PolledEvent>> polled;

std::shared_ptr<PolledEvent> polled_event(concord_event event) {
  const std::lock_guard lock(polled_mutex);
  std::shared_ptr<PolledEvent>& known = polled[event];
  if (known == nullptr) {
    known = std::make_shared<PolledEvent>();
    known->event = event;
  }
  return known;
}

concord_status wait_by_polling(void* self, concord_stream stream, concord_event event) {
  if (event == nullptr) return base().stream.wait_event(self, stream, event);
  auto* user = new std::shared_ptr<PolledEvent>(polled_event(event));
  return base().stream.launch_host(
      self, stream,
      [](void* data) {
        const std::unique_ptr<std::shared_ptr<PolledEvent>> waited(static_cast<std::shared_ptr<PolledEvent>*>(data));
        while (!(*waited)->done()) pause_briefly();
      },
      user);
}

concord_status destroy_polled(void* self, concord_event event) {
  const std::shared_ptr<PolledEvent> known = polled_event(event);
  const std::lock_guard lock(known->mutex);
  known->destroyed = true;
  {
    const std::lock_guard map_lock(polled_mutex);
    polled.erase(event);
  }
  return base().event.destroy(self, event);
}

// ---- events whose records are remembered

std::mutex records_mutex;
std::map<concord_event, concord_stream> records;

concord_status record_noted(void* self, concord_event event, concord_stream stream) {
  const std::lock_guard lock(records_mutex);
  records[event] = stream;
  return base().event.record(self, event, stream);
}

bool was_recorded(concord_event event, concord_stream* out_stream) {
  const std::lock_guard lock(records_mutex);
  const auto found = records.find(event);
  if (found == records.end()) return false;
  *out_stream = found->second;
  return true;
}

concord_status wait_only_recorded(void* self, concord_stream stream, concord_event event) {
  concord_stream recorded_on = nullptr;
  if (event != nullptr && !was_recorded(event, &recorded_on)) return CONCORD_STATUS_FAILED_PRECONDITION;
  return base().stream.wait_event(self, stream, event);
}

concord_status query_the_stream(void* self, concord_event event, int32_t* out_done) {
  concord_stream stream = nullptr;
  if (event == nullptr || out_done == nullptr || !was_recorded(event, &stream))
    return base().event.query(self, event, out_done);
  return base().stream.query(base().stream.self, stream, out_done);
}

concord_status record_once(void* self, concord_event event, concord_stream stream) {
  concord_stream recorded_on = nullptr;
  if (was_recorded(event, &recorded_on)) return CONCORD_STATUS_OK;
  return record_noted(self, event, stream);
}

concord_status forget_record(void* self, concord_event event) {
  {
    const std::lock_guard lock(records_mutex);
    records.erase(event);
  }
  return base().event.destroy(self, event);
}

concord_status create_shared(void* self, int32_t device, int32_t priority, concord_stream* out) {
  static std::mutex mutex;
  static concord_stream only = nullptr;
  if (out == nullptr) return base().stream.create(self, device, priority, out);
  const std::lock_guard lock(mutex);
  if (only == nullptr) base().stream.create(self, device, priority, &only);
  *out = only;
  return CONCORD_STATUS_OK;
}

concord_status launch_twice(void* self, concord_stream stream, concord_host_function function, void* user) {
  const concord_status status = base().stream.launch_host(self, stream, function, user);
  return status != CONCORD_STATUS_OK ? status : base().stream.launch_host(self, stream, function, user);
}

concord_status launch_now(void* self, concord_stream stream, concord_host_function function, void* user) {
  if (function == nullptr) return base().stream.launch_host(self, stream, function, user);
  function(user);
  return CONCORD_STATUS_OK;
}

// ---- fills that a host function does, unless the stream was destroyed in the meantime

struct DroppableFill {
  concord_stream stream;
  void* destination;
  int32_t value;
  int64_t bytes;
};

std::mutex destroyed_mutex;
std::set<concord_stream> destroyed_streams;

concord_status fill_droppable(void* self, void* destination, int32_t value, int64_t bytes, concord_stream stream) {
  if (stream == nullptr || bytes <= 0) return base().memory.fill_on_stream(self, destination, value, bytes, stream);
  return base().stream.launch_host(
      base().stream.self, stream,
      [](void* user) {
        const std::unique_ptr<DroppableFill> fill(static_cast<DroppableFill*>(user));
        const std::lock_guard lock(destroyed_mutex);
        if (destroyed_streams.count(fill->stream) != 0) return;
        base().memory.fill_on_stream(base().memory.self, fill->destination, fill->value, fill->bytes, nullptr);
      },
      new DroppableFill{stream, destination, value, bytes});
}

concord_status create_undestroyed(void* self, int32_t device, int32_t priority, concord_stream* out) {
  const concord_status status = base().stream.create(self, device, priority, out);
  const std::lock_guard lock(destroyed_mutex);
  if (status == CONCORD_STATUS_OK) destroyed_streams.erase(*out);
  return status;
}

concord_status destroy_dropping(void* self, concord_stream stream) {
  {
    const std::lock_guard lock(destroyed_mutex);
    destroyed_streams.insert(stream);
  }
  return base().stream.destroy(self, stream);
}

concord_status keep_stream(void*, concord_stream stream) {
  wait_for(stream);
  return CONCORD_STATUS_OK;
}

concord_status elapsed_in_microseconds(void* self, concord_event start, concord_event end, double* out) {
  const concord_status status = base().event.elapsed(self, start, end, out);
  if (status == CONCORD_STATUS_OK) *out *= 1000;
  return status;
}

concord_status elapsed_always(void* self, concord_event start, concord_event end, double* out) {
  const concord_status status = base().event.elapsed(self, start, end, out);
  if (status == CONCORD_STATUS_FAILED_PRECONDITION) *out = 0;
  return status == CONCORD_STATUS_FAILED_PRECONDITION ? CONCORD_STATUS_OK : status;
}

concord_status say_done_event(void* self, concord_event event, int32_t* out_done) {
  const concord_status status = base().event.query(self, event, out_done);
  if (status == CONCORD_STATUS_OK) *out_done = 1;
  return status;
}

concord_status say_done_stream(void* self, concord_stream stream, int32_t* out_done) {
  const concord_status status = base().stream.query(self, stream, out_done);
  if (status == CONCORD_STATUS_OK) *out_done = 1;
  return status;
}

std::vector<NamedDefect> event_defects() {
  return {
      {"EventQueryAnswersEarly", [](Tables& tables) { tables.event.query = say_done_event; }},
      {"EventSynchronizeReturnsAtOnce",
       [](Tables& tables) {
         tables.event.synchronize = [](void*, concord_event) -> concord_status { return CONCORD_STATUS_OK; };
       }},
      {"EventWaitsForLaterWork",
       [](Tables& tables) {
         tables.event.record = record_noted;
         tables.event.query = query_the_stream;
         tables.event.destroy = forget_record;
       }},
      {"SecondRecordIsIgnored",
       [](Tables& tables) {
         tables.event.record = record_once;
         tables.event.destroy = forget_record;
       }},
      {"ElapsedIsInMicroseconds", [](Tables& tables) { tables.event.elapsed = elapsed_in_microseconds; }},
      {"ElapsedNeverFails", [](Tables& tables) { tables.event.elapsed = elapsed_always; }},
      {"DestroyedEventFreesWaiters",
       [](Tables& tables) {
         tables.stream.wait_event = wait_by_polling;
         tables.event.destroy = destroy_polled;
       }},
      {"EventsLeak",
       [](Tables& tables) {
         tables.event.destroy = [](void*, concord_event) -> concord_status { return CONCORD_STATUS_OK; };
       }},
  };
}

}  // namespace

std::vector<NamedDefect> stream_defects() {
  std::vector<NamedDefect> list = {
      {"WaitEventDoesNothing",
       [](Tables& tables) {
         tables.stream.wait_event = [](void*, concord_stream, concord_event) -> concord_status {
           return CONCORD_STATUS_OK;
         };
       }},
      {"WaitEventBindsLate", [](Tables& tables) { tables.stream.wait_event = wait_by_polling; }},
      {"WaitOnUnrecordedEventFails",
       [](Tables& tables) {
         tables.event.record = record_noted;
         tables.event.destroy = forget_record;
         tables.stream.wait_event = wait_only_recorded;
       }},
      {"StreamSynchronizeReturnsAtOnce",
       [](Tables& tables) {
         tables.stream.synchronize = [](void*, concord_stream) -> concord_status { return CONCORD_STATUS_OK; };
       }},
      {"StreamQueryAnswersEarly", [](Tables& tables) { tables.stream.query = say_done_stream; }},
      {"StreamsShareAQueue",
       [](Tables& tables) {
         tables.stream.create = create_shared;
         tables.stream.destroy = keep_stream;
       }},
      {"HostFunctionsRunTwice", [](Tables& tables) { tables.stream.launch_host = launch_twice; }},
      {"HostFunctionsRunAtOnce", [](Tables& tables) { tables.stream.launch_host = launch_now; }},
      {"DestroyDropsWork",
       [](Tables& tables) {
         tables.memory.fill_on_stream = fill_droppable;
         tables.stream.create = create_undestroyed;
         tables.stream.destroy = destroy_dropping;
       }},
      {"PriorityRangeIsUpsideDown",
       [](Tables& tables) {
         tables.stream.priority_range = [](void*, int32_t, int32_t* least, int32_t* greatest) -> concord_status {
           *least = -1;
           *greatest = 0;
           return CONCORD_STATUS_OK;
         };
       }},
      {"StreamsLeak", [](Tables& tables) { tables.stream.destroy = keep_stream; }},
  };
  for (const NamedDefect& defect : event_defects()) list.push_back(defect);
  return list;
}

}  // namespace concord::mutants
