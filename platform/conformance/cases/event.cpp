// The event table: what a record captures, when an event is done, and how long something took.
#include <chrono>
#include <thread>

#include "platform/conformance/refusals.h"
#include "platform/conformance/registry.h"
#include "platform/conformance/resources.h"

namespace concord::conformance {
namespace {

constexpr int64_t kEventBytes = 1 << 16;

bool event_done(Context& t, concord_event event) {
  int32_t done = -1;
  CHECK_OK(t.events().query(t.events().self, event, &done));
  CHECK(done == 0 || done == 1, "event.query returned %d", done);
  return done == 1;
}
void wait_for(Context& t, concord_event event) { CHECK_OK(t.events().synchronize(t.events().self, event)); }

void unrecorded_events_are_done(Context& t) {
  Event event(t);
  CHECK(event_done(t, event.get()), "an event that was never recorded reports that it is not done");
  wait_for(t, event.get());
}

void query_tells_when_done(Context& t) {
  Stream stream(t);
  Event event(t);
  DeviceMemory memory(t, kEventBytes);
  fill(t, memory.get(), 1, kEventBytes, stream.get());
  record(t, event.get(), stream.get());
  synchronize(t, stream.get());
  CHECK(event_done(t, event.get()), "event.query returned 0 after its stream was synchronized");
  Gate gate(t, stream.get());
  fill(t, memory.get(), 2, kEventBytes, stream.get());
  record(t, event.get(), stream.get());
  if (gate.holds()) {
    linger();
    CHECK(!event_done(t, event.get()), "event.query returned 1 while the work before the event is held back");
    gate.require_closed("event.record or event.query");
  }
  gate.open();
  CHECK(eventually([&] { return event_done(t, event.get()); }), "event.query never returned 1");
  CHECK(all_are(memory.read(), 2), "event.query returned 1 before the work preceding the event was done");
}

void synchronize_waits(Context& t) {
  Stream stream(t);
  Event event(t);
  DeviceMemory memory(t, kEventBytes);
  HostMemory host(t, kEventBytes);
  fill(t, memory.get(), 1, kEventBytes, stream.get());
  copy_async(t, host.get(), memory.get(), kEventBytes, CONCORD_COPY_DEVICE_TO_HOST, stream.get());
  record(t, event.get(), stream.get());
  wait_for(t, event.get());
  Gate gate(t, stream.get());
  fill(t, memory.get(), 3, kEventBytes, stream.get());
  copy_async(t, host.get(), memory.get(), kEventBytes, CONCORD_COPY_DEVICE_TO_HOST, stream.get());
  record(t, event.get(), stream.get());
  gate.open_later(30);
  wait_for(t, event.get());
  CHECK(host.get()[0] == 3 && host.get()[kEventBytes - 1] == 3, "event.synchronize returned before the work was done");
}

void record_captures_only_earlier_work(Context& t) {
  Stream stream(t);
  Event event(t);
  DeviceMemory memory(t, kEventBytes);
  fill(t, memory.get(), 1, kEventBytes, stream.get());
  record(t, event.get(), stream.get());
  synchronize(t, stream.get());
  record(t, event.get(), stream.get());
  Gate gate(t, stream.get());
  if (!gate.holds()) t.skip_unsupported("needs stream.host_functions");
  fill(t, memory.get(), 2, kEventBytes, stream.get());
  CHECK(eventually([&] { return event_done(t, event.get()); }),
        "an event waits for work that was queued after its record");
  wait_for(t, event.get());
  gate.open();  // Failed if event.synchronize waited so long that the gate opened itself
}

void newest_record_counts(Context& t) {
  Stream idle(t);
  Stream held(t);
  Event event(t);
  record(t, event.get(), idle.get());
  wait_for(t, event.get());
  Gate gate(t, held.get());
  record(t, event.get(), held.get());
  if (gate.holds()) {
    linger();
    CHECK(!event_done(t, event.get()), "event.query reports an older record");
  }
  gate.open();
  wait_for(t, event.get());
  CHECK(event_done(t, event.get()), "event.query returned 0 after event.synchronize");
}

void destroy_is_fine_at_any_time(Context& t) {
  Stream producer(t);
  Stream consumer(t);
  DeviceMemory data(t, kEventBytes);
  HostMemory out(t, kEventBytes);
  fill(t, data.get(), 1, kEventBytes, producer.get());
  copy_async(t, out.get(), data.get(), kEventBytes, CONCORD_COPY_DEVICE_TO_HOST, producer.get());
  synchronize(t, producer.get());
  Event event(t);
  Event unused(t);
  Gate gate(t, producer.get());
  fill(t, data.get(), 8, kEventBytes, producer.get());
  record(t, event.get(), producer.get());
  CHECK_OK(t.streams().wait_event(t.streams().self, consumer.get(), event.get()));
  copy_async(t, out.get(), data.get(), kEventBytes, CONCORD_COPY_DEVICE_TO_HOST, consumer.get());
  CHECK_OK(event.destroy());
  CHECK_OK(unused.destroy());
  gate.require_closed("event.destroy");
  if (gate.holds()) {
    linger();
    CHECK(!is_done(t, consumer.get()), "destroying an event released a stream that waits for it");
  }
  gate.open();
  synchronize(t, consumer.get());
  CHECK(out.get()[0] == 8 && out.get()[kEventBytes - 1] == 8, "destroying an event lost the order that it established");
}

// The lower bound is a sleep inside the stream, the upper one the host's own clock around everything: both must hold
// however slow the machine is.
void elapsed_is_in_milliseconds(Context& t) {
  Stream stream(t);
  Event start(t, CONCORD_EVENT_TIMING);
  Event end(t, CONCORD_EVENT_TIMING);
  const auto before = std::chrono::steady_clock::now();
  record(t, start.get(), stream.get());
  CHECK_OK(t.streams().launch_host(
      t.streams().self, stream.get(), [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); },
      nullptr));
  record(t, end.get(), stream.get());
  synchronize(t, stream.get());
  const double wall = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - before).count();
  double elapsed = -1;
  CHECK_OK(t.events().elapsed(t.events().self, start.get(), end.get(), &elapsed));
  CHECK(elapsed >= 49 && elapsed <= wall + 1, "50 ms of work within %.3f ms took %.3f ms by event.elapsed", wall,
        elapsed);
  double backwards = 1;
  CHECK_OK(t.events().elapsed(t.events().self, start.get(), start.get(), &backwards));
  CHECK(backwards == 0, "event.elapsed from an event to itself is %.3f ms", backwards);
}

void elapsed_needs_finished_records(Context& t) {
  const concord_event_table& e = t.events();
  Stream stream(t);
  Event recorded(t, CONCORD_EVENT_TIMING);
  Event unrecorded(t, CONCORD_EVENT_TIMING);
  Event plain(t);
  record(t, recorded.get(), stream.get());
  record(t, plain.get(), stream.get());
  synchronize(t, stream.get());
  double elapsed = 0;
  CHECK_STATUS(CONCORD_STATUS_FAILED_PRECONDITION, e.elapsed(e.self, recorded.get(), unrecorded.get(), &elapsed));
  CHECK_STATUS(CONCORD_STATUS_FAILED_PRECONDITION, e.elapsed(e.self, recorded.get(), plain.get(), &elapsed));
  Gate gate(t, stream.get());
  if (!gate.holds()) return;
  record(t, unrecorded.get(), stream.get());
  CHECK_STATUS(CONCORD_STATUS_FAILED_PRECONDITION, e.elapsed(e.self, recorded.get(), unrecorded.get(), &elapsed));
  gate.open();
  synchronize(t, stream.get());
}

void threads_wait_for_one_event(Context& t) {
  for (int round = 0; round < (t.quick() ? 5 : 20); ++round) {
    Stream stream(t);
    Event event(t);
    DeviceMemory memory(t, kEventBytes);
    HostMemory host(t, kEventBytes);
    copy_async(t, host.get(), memory.get(), 0, CONCORD_COPY_DEVICE_TO_HOST, stream.get());
    Gate gate(t, stream.get());
    fill(t, memory.get(), 4, kEventBytes, stream.get());
    copy_async(t, host.get(), memory.get(), kEventBytes, CONCORD_COPY_DEVICE_TO_HOST, stream.get());
    record(t, event.get(), stream.get());
    gate.open_later(5);
    run_threads(4, [&](int) {
      wait_for(t, event.get());
      CHECK(event_done(t, event.get()), "event.synchronize returned too early on one of four threads");
      CHECK(host.get()[kEventBytes - 1] == 4, "event.synchronize returned too early on one of four threads");
    });
  }
}

}  // namespace

void add_event_tests(Registry& registry) {
  const std::vector<std::string> timing = {CONCORD_CAP_EVENT_TIMING};
  const std::vector<std::string> timed_work = {CONCORD_CAP_EVENT_TIMING, CONCORD_CAP_STREAM_HOST_FUNCTIONS};
  registry.add({"event", "AnEventNeverRecordedIsDone", unrecorded_events_are_done});
  registry.add({"event", "QueryTellsWhetherTheRecordWasReached", query_tells_when_done});
  registry.add({"event", "SynchronizeWaitsForTheRecord", synchronize_waits});
  registry.add({"event",
                "ARecordCapturesOnlyEarlierWork",
                record_captures_only_earlier_work,
                {CONCORD_CAP_STREAM_HOST_FUNCTIONS}});
  registry.add({"event", "TheNewestRecordCounts", newest_record_counts});
  registry.add({"event", "DestroyIsFineAtAnyTime", destroy_is_fine_at_any_time});
  registry.add({"event", "ElapsedIsInMilliseconds", elapsed_is_in_milliseconds, timed_work});
  registry.add({"event", "ElapsedNeedsFinishedRecordsWithTiming", elapsed_needs_finished_records, timing});
  registry.add({"event", "FourThreadsWaitForOneEvent", threads_wait_for_one_event});
  registry.add({"event", "WrongArgumentsAreRefused", [](Context& t) { require_refused(t, event_refusals(t)); }});
}

}  // namespace concord::conformance
