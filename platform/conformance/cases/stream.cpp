// The stream table: order within a stream, independence between streams, waits on events.
#include <atomic>

#include "platform/conformance/refusals.h"
#include "platform/conformance/registry.h"
#include "platform/conformance/resources.h"

namespace concord::conformance {
namespace {

constexpr int64_t kStreamBytes = 1 << 16;

void wait_event(Context& t, concord_stream stream, concord_event event) {
  CHECK_OK(t.streams().wait_event(t.streams().self, stream, event));
}
void launch(Context& t, concord_stream stream, concord_host_function function, void* user) {
  CHECK_OK(t.streams().launch_host(t.streams().self, stream, function, user));
}

// Each fill must come after the copy of the one before it.
void work_runs_in_order(Context& t) {
  constexpr int kSteps = 200;
  constexpr int64_t kPiece = 4096;
  Stream stream(t);
  DeviceMemory source(t, kPiece);
  DeviceMemory target(t, kPiece * kSteps);
  fill(t, source.get(), 0, kPiece, stream.get());
  copy_async(t, target.get(), source.get(), kPiece, CONCORD_COPY_DEVICE_TO_DEVICE, stream.get());
  synchronize(t, stream.get());
  Gate gate(t, stream.get());  // so that all is queued before any of it runs
  for (int i = 0; i < kSteps; ++i) {
    fill(t, source.get(), i, kPiece, stream.get());
    copy_async(t, target.at(i * kPiece), source.get(), kPiece, CONCORD_COPY_DEVICE_TO_DEVICE, stream.get());
  }
  gate.open();
  synchronize(t, stream.get());
  for (int i = 0; i < kSteps; ++i) {
    CHECK(all_are(target.read(kPiece, i * kPiece), static_cast<uint8_t>(i)),
          "step %d of %d saw the value of another step", i, kSteps);
  }
}

void stream_synchronize_waits(Context& t) {
  Stream stream(t);
  DeviceMemory memory(t, kStreamBytes);
  HostMemory host(t, kStreamBytes);
  fill(t, memory.get(), 1, kStreamBytes, stream.get());
  copy_async(t, host.get(), memory.get(), kStreamBytes, CONCORD_COPY_DEVICE_TO_HOST, stream.get());
  synchronize(t, stream.get());
  Gate gate(t, stream.get());
  fill(t, memory.get(), 42, kStreamBytes, stream.get());
  copy_async(t, host.get(), memory.get(), kStreamBytes, CONCORD_COPY_DEVICE_TO_HOST, stream.get());
  gate.open_later(30);
  synchronize(t, stream.get());
  CHECK(host.get()[0] == 42 && host.get()[kStreamBytes - 1] == 42,
        "stream.synchronize returned before the work was done");
}

void query_tells_whether_work_is_pending(Context& t) {
  Stream stream(t);
  CHECK(is_done(t, stream.get()), "a new stream reports unfinished work");
  DeviceMemory memory(t, kStreamBytes);
  fill(t, memory.get(), 1, kStreamBytes, stream.get());
  synchronize(t, stream.get());
  CHECK(is_done(t, stream.get()), "stream.query returned 0 after stream.synchronize");
  Gate gate(t, stream.get());
  fill(t, memory.get(), 2, kStreamBytes, stream.get());
  if (gate.holds()) {
    linger();
    CHECK(!is_done(t, stream.get()), "stream.query returned 1 while work is held back");
    gate.require_closed("stream.query");
  }
  gate.open();
  CHECK(eventually([&] { return is_done(t, stream.get()); }), "stream.query never returned 1");
  CHECK(memory.read(1)[0] == 2, "stream.query returned 1 before the work was done");
}

void streams_are_independent(Context& t) {
  Stream held(t);
  Stream free_one(t);
  DeviceMemory memory(t, kStreamBytes);
  DeviceMemory other(t, kStreamBytes);
  fill(t, memory.get(), 1, kStreamBytes, free_one.get());
  fill(t, other.get(), 1, kStreamBytes, held.get());
  synchronize(t, held.get());
  synchronize(t, free_one.get());
  Gate gate(t, held.get());
  if (!gate.holds()) t.skip_unsupported("needs stream.host_functions");
  fill(t, other.get(), 3, kStreamBytes, held.get());
  fill(t, memory.get(), 3, kStreamBytes, free_one.get());
  CHECK(eventually([&] { return is_done(t, free_one.get()); }), "a stream waits for the work of another");
  CHECK(memory.read(1)[0] == 3, "a stream reported that it was done when it was not");
  gate.open();
  synchronize(t, held.get());
}

void destroy_lets_work_finish(Context& t) {
  DeviceMemory memory(t, kStreamBytes);
  {
    Stream stream(t);
    fill(t, memory.get(), 1, kStreamBytes, stream.get());
    synchronize(t, stream.get());
    Gate gate(t, stream.get());
    fill(t, memory.get(), 7, kStreamBytes, stream.get());
    gate.open_later(30);  // destroy may wait or not
    CHECK_OK(stream.destroy());
    CHECK_OK(t.device_table().synchronize(t.device_table().self, t.device()));
  }
  CHECK(all_are(memory.read(), 7), "work that was queued on a stream was lost when the stream was destroyed");
}

// A producer that is held back, an event, and a consumer on another stream.
void wait_event_orders(Context& t) {
  Stream producer(t);
  Stream consumer(t);
  Event ready(t);
  DeviceMemory data(t, kStreamBytes);
  HostMemory out(t, kStreamBytes);
  fill(t, data.get(), 1, kStreamBytes, producer.get());
  record(t, ready.get(), producer.get());
  wait_event(t, consumer.get(), ready.get());
  copy_async(t, out.get(), data.get(), kStreamBytes, CONCORD_COPY_DEVICE_TO_HOST, consumer.get());
  synchronize(t, consumer.get());
  CHECK(out.get()[0] == 1, "a consumer after an event did not see what was produced");
  Gate gate(t, producer.get());
  fill(t, data.get(), 2, kStreamBytes, producer.get());
  record(t, ready.get(), producer.get());
  wait_event(t, consumer.get(), ready.get());
  copy_async(t, out.get(), data.get(), kStreamBytes, CONCORD_COPY_DEVICE_TO_HOST, consumer.get());
  gate.require_closed("event.record or stream.wait_event");
  if (gate.holds()) {
    linger();
    CHECK(!is_done(t, consumer.get()), "a consumer ran before the event that it waits for");
  }
  gate.open();
  synchronize(t, consumer.get());
  CHECK(all_are(Bytes(out.get(), out.get() + kStreamBytes), 2), "a consumer after an event saw data from before it");
}

// The producer is held back; its event is then recorded again on an idle stream. Earlier waits still hold.
void recording_again_keeps_older_waits(Context& t) {
  Stream producer(t);
  Stream consumer(t);
  Stream idle(t);
  Event event(t);
  DeviceMemory data(t, kStreamBytes);
  HostMemory out(t, kStreamBytes);
  fill(t, data.get(), 1, kStreamBytes, producer.get());
  fill(t, data.get(), 1, 0, idle.get());
  copy_async(t, out.get(), data.get(), kStreamBytes, CONCORD_COPY_DEVICE_TO_HOST, producer.get());
  synchronize(t, producer.get());
  Gate gate(t, producer.get());
  fill(t, data.get(), 2, kStreamBytes, producer.get());
  record(t, event.get(), producer.get());
  wait_event(t, consumer.get(), event.get());
  copy_async(t, out.get(), data.get(), kStreamBytes, CONCORD_COPY_DEVICE_TO_HOST, consumer.get());
  record(t, event.get(), idle.get());
  synchronize(t, idle.get());
  if (gate.holds()) {
    linger();
    CHECK(!is_done(t, consumer.get()), "recording an event again released a stream that waits for the older record");
  }
  gate.open();
  synchronize(t, consumer.get());
  CHECK(all_are(Bytes(out.get(), out.get() + kStreamBytes), 2),
        "recording an event again released a stream that waits for the older record");
}

// The consumer waits for a record that is long done; the event is then recorded again on a stream that is held back
// before the consumer comes to its wait. The consumer must not wait for the newer record.
void waits_do_not_move_to_newer_records(Context& t) {
  constexpr int64_t kDelay = int64_t{16} << 20;
  Stream consumer(t);
  Stream held(t);
  Event event(t);
  DeviceMemory busy(t, kDelay);
  fill(t, busy.get(), 1, kDelay, consumer.get());
  synchronize(t, consumer.get());
  record(t, event.get(), held.get());
  synchronize(t, held.get());
  for (int i = 0; i < 8; ++i) fill(t, busy.get(), i, kDelay, consumer.get());  // so that it comes to the wait late
  wait_event(t, consumer.get(), event.get());
  fill(t, busy.get(), 9, kStreamBytes, consumer.get());
  Gate gate(t, held.get());
  if (!gate.holds()) t.skip_unsupported("needs stream.host_functions");
  record(t, event.get(), held.get());
  CHECK(eventually([&] { return is_done(t, consumer.get()); }), "a wait applied to a record made after it");
  gate.open();
  synchronize(t, held.get());
}

void waits_on_unrecorded_events_hold_nothing(Context& t) {
  Stream stream(t);
  Event event(t);
  DeviceMemory memory(t, kStreamBytes);
  wait_event(t, stream.get(), event.get());
  fill(t, memory.get(), 5, kStreamBytes, stream.get());
  CHECK(eventually([&] { return is_done(t, stream.get()); }),
        "a wait on an event that was never recorded holds work back");
  CHECK(memory.read(1)[0] == 5, "work after a wait on an event that was never recorded did not run");
}

void host_functions_run_in_order(Context& t) {
  struct Log {
    std::atomic<int> next{0};
    std::atomic<int> wrong{0};
  } log;
  struct Call {
    Log* log;
    int place;
  };
  std::vector<Call> calls;
  for (int i = 0; i < 100; ++i) calls.push_back({&log, i});
  Stream stream(t);
  for (Call& call : calls) {
    launch(
        t, stream.get(),
        [](void* user) {
          const auto* mine = static_cast<Call*>(user);
          if (mine->log->next.fetch_add(1) != mine->place) mine->log->wrong.fetch_add(1);
        },
        &call);
  }
  synchronize(t, stream.get());
  CHECK(log.next == 100, "100 host functions were queued, %d calls were made", log.next.load());
  CHECK(log.wrong == 0, "%d host functions ran out of order", log.wrong.load());
}

void host_functions_see_earlier_work(Context& t) {
  struct Look {
    uint8_t* memory;
    std::atomic<int> seen{-1};
  } look;
  Stream stream(t);
  DeviceMemory memory(t, kStreamBytes);
  HostMemory host(t, kStreamBytes);
  look.memory = host.get();
  for (int value = 1; value < 20; ++value) {
    fill(t, memory.get(), value, kStreamBytes, stream.get());
    copy_async(t, host.get(), memory.get(), kStreamBytes, CONCORD_COPY_DEVICE_TO_HOST, stream.get());
    launch(
        t, stream.get(),
        [](void* user) {
          auto* at = static_cast<Look*>(user);
          at->seen = at->memory[kStreamBytes - 1];
        },
        &look);
    synchronize(t, stream.get());
    CHECK(look.seen == value, "a host function saw %d where the work before it had left %d", look.seen.load(), value);
  }
}

void priorities_are_a_range(Context& t) {
  int32_t least = -100;
  int32_t greatest = 100;
  CHECK_OK(t.streams().priority_range(t.streams().self, t.device(), &least, &greatest));
  CHECK(greatest <= 0 && least >= 0, "the priorities go from %d (least) to %d (greatest)", least, greatest);
  const bool several = t.capability(CONCORD_CAP_STREAM_PRIORITIES) != 0;
  CHECK(several == (least != greatest), "stream.priorities is %d and the range is %d to %d", several ? 1 : 0, least,
        greatest);
  for (const int32_t priority : {greatest, least, greatest - 100, least + 100}) {
    Stream stream(t, priority);
    DeviceMemory memory(t, 64);
    fill(t, memory.get(), 3, 64, stream.get());
    synchronize(t, stream.get());
    CHECK(memory.read(1)[0] == 3, "a stream of priority %d does not work", priority);
  }
}

void null_stream_works(Context& t) {
  DeviceMemory first(t, kStreamBytes);
  DeviceMemory second(t, kStreamBytes);
  fill(t, first.get(), 6, kStreamBytes, nullptr);
  copy_async(t, second.get(), first.get(), kStreamBytes, CONCORD_COPY_DEVICE_TO_DEVICE, nullptr);
  synchronize(t, nullptr);
  CHECK(is_done(t, nullptr), "the null stream is not done after synchronize");
  CHECK(all_are(second.read(), 6), "work on the null stream was not done after synchronize");
}

void threads_queue_on_one_stream(Context& t) {
  constexpr int kThreads = 4;
  constexpr int64_t kPiece = 1024;
  const int rounds = t.quick() ? 50 : 300;
  Stream stream(t);
  DeviceMemory target(t, kThreads * kPiece);
  run_threads(kThreads, [&](int thread) {
    DeviceMemory mine(t, kPiece);
    for (int i = 0; i < rounds; ++i) {
      fill(t, mine.get(), thread * 50 + i % 50, kPiece, stream.get());
      copy_async(t, target.at(thread * kPiece), mine.get(), kPiece, CONCORD_COPY_DEVICE_TO_DEVICE, stream.get());
    }
    synchronize(t, stream.get());
  });
  for (int thread = 0; thread < kThreads; ++thread) {
    CHECK(all_are(target.read(kPiece, thread * kPiece), static_cast<uint8_t>(thread * 50 + (rounds - 1) % 50)),
          "work that thread %d queued on a shared stream gave wrong results", thread);
  }
}

void threads_use_their_own_streams(Context& t) {
  run_threads(4, [&](int thread) {
    for (int i = 0; i < (t.quick() ? 10 : 50); ++i) {
      Stream stream(t);
      Event event(t);
      DeviceMemory memory(t, kStreamBytes);
      fill(t, memory.get(), thread, kStreamBytes, stream.get());
      record(t, event.get(), stream.get());
      CHECK_OK(t.events().synchronize(t.events().self, event.get()));
      CHECK(all_are(memory.read(), static_cast<uint8_t>(thread)),
            "a stream of one of four threads did not do its work");
    }
  });
}

// A ring of streams and events, so that no single lucky order hides a missing wait.
void chains_of_events_hold(Context& t) {
  constexpr int kStreams = 4;
  const int rounds = t.quick() ? 40 : 200;
  std::vector<Stream> streams;
  std::vector<Event> events;
  for (int i = 0; i < kStreams; ++i) {
    streams.emplace_back(t);
    events.emplace_back(t);
  }
  DeviceMemory token(t, kStreamBytes);
  DeviceMemory log(t, kStreamBytes * rounds);
  fill(t, token.get(), 0, kStreamBytes, streams[0].get());
  copy_async(t, log.get(), token.get(), kStreamBytes, CONCORD_COPY_DEVICE_TO_DEVICE, streams[0].get());
  synchronize(t, streams[0].get());
  Gate gate(t, streams[0].get());
  for (int i = 0; i < rounds; ++i) {
    const auto at = static_cast<size_t>(i % kStreams);
    if (i > 0) wait_event(t, streams[at].get(), events[static_cast<size_t>((i - 1) % kStreams)].get());
    fill(t, token.get(), i, kStreamBytes, streams[at].get());
    copy_async(t, log.at(i * kStreamBytes), token.get(), kStreamBytes, CONCORD_COPY_DEVICE_TO_DEVICE,
               streams[at].get());
    record(t, events[at].get(), streams[at].get());
  }
  if (gate.holds()) linger();
  for (Stream& stream : streams) {
    CHECK(!gate.holds() || !is_done(t, stream.get()), "a chain of events did not wait for its first link");
  }
  gate.open();
  for (Stream& stream : streams) synchronize(t, stream.get());
  for (int i = 0; i < rounds; ++i) {
    CHECK(all_are(log.read(kStreamBytes, i * kStreamBytes), static_cast<uint8_t>(i)),
          "link %d of a chain of events was overtaken", i);
  }
}

}  // namespace

void add_stream_tests(Registry& registry) {
  const std::vector<std::string> host_functions = {CONCORD_CAP_STREAM_HOST_FUNCTIONS};
  registry.add({"stream", "WorkRunsInTheOrderItWasQueued", work_runs_in_order});
  registry.add({"stream", "SynchronizeWaitsForAllQueuedWork", stream_synchronize_waits});
  registry.add({"stream", "QueryTellsWhetherWorkIsPending", query_tells_whether_work_is_pending});
  registry.add({"stream", "StreamsDoNotWaitForEachOther", streams_are_independent, host_functions});
  registry.add({"stream", "DestroyLetsQueuedWorkFinish", destroy_lets_work_finish});
  registry.add({"stream", "AWaitingStreamRunsAfterTheEvent", wait_event_orders});
  registry.add({"stream", "RecordingAgainKeepsOlderWaits", recording_again_keeps_older_waits});
  registry.add({"stream", "AWaitDoesNotMoveToANewerRecord", waits_do_not_move_to_newer_records, host_functions});
  registry.add({"stream", "AnEventNeverRecordedHoldsNothingBack", waits_on_unrecorded_events_hold_nothing});
  registry.add({"stream", "ChainsOfEventsOverFourStreamsHold", chains_of_events_hold});
  registry.add({"stream", "HostFunctionsRunOnceAndInOrder", host_functions_run_in_order, host_functions});
  registry.add({"stream", "HostFunctionsSeeTheWorkBeforeThem", host_functions_see_earlier_work, host_functions});
  registry.add({"stream", "PrioritiesAreARangeAroundZero", priorities_are_a_range});
  registry.add({"stream", "TheNullStreamWorks", null_stream_works, {CONCORD_CAP_STREAM_NULL}});
  registry.add({"stream", "FourThreadsQueueOnOneStream", threads_queue_on_one_stream});
  registry.add({"stream", "FourThreadsUseStreamsOfTheirOwn", threads_use_their_own_streams});
  registry.add({"stream", "WrongArgumentsAreRefused", [](Context& t) { require_refused(t, stream_refusals(t)); }});
}

}  // namespace concord::conformance
