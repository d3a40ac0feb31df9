#include "backends/cpu/testing/harness.h"

namespace concord::cpu::testing {
namespace {

void wait_for(concord_stream s, concord_event e) { EXPECT_OK(CALL(stream, wait_event, s, e)); }

TEST(Event, NeverRecordedCountsAsDoneAndHoldsNothingBack) {
  TestEvent e;
  EXPECT_TRUE(e.done());
  EXPECT_OK(CALL(event, synchronize, e));
  const TestStream s;
  wait_for(s, e);
  EXPECT_OK(s.synchronize());
}

TEST(Event, RecordIsReachedWhenTheWorkBeforeItIsDoneAndNotEarlier) {
  Gate before, after;
  const TestStream s;
  TestEvent e;
  before.block(s);
  e.record(s);
  after.block(s);
  before.await_entry();
  EXPECT_FALSE(e.done());
  before.open();
  EXPECT_OK(CALL(event, synchronize, e));
  EXPECT_TRUE(e.done()) << "the work behind the record does not count";
  after.await_entry();
}

TEST(Event, RecordOnAnIdleStreamIsReachedAtOnce) {
  const TestStream s;
  TestEvent e;
  e.record(s);
  EXPECT_TRUE(e.done());
}

TEST(Event, AStreamWaitsForTheRecordOfAnother) {
  std::atomic<int> produced = 0;
  int seen = -1;
  struct Look {
    std::atomic<int>* from;
    int* to;
  } look{&produced, &seen};
  Gate slow;
  const TestStream producer, consumer;
  TestEvent ready;
  slow.block(producer);
  count_up(producer, produced);
  ready.record(producer);
  wait_for(consumer, ready);
  const auto read = [](void* user) { *static_cast<Look*>(user)->to = static_cast<Look*>(user)->from->load(); };
  EXPECT_OK(CALL(stream, launch_host, consumer, read, &look));
  slow.await_entry();
  give_others_time();
  EXPECT_FALSE(consumer.done());
  slow.open();
  EXPECT_OK(consumer.synchronize());
  EXPECT_EQ(seen, 1);
}

TEST(Event, AWaitKeepsTheRecordThatWasCurrentWhenItWasMade) {
  Gate early, late;
  const TestStream first, second, waits_early, waits_late;
  TestEvent e;
  early.block(first);
  e.record(first);
  wait_for(waits_early, e);
  late.block(second);
  e.record(second);  // replaces the mark; the wait above stays with the first
  wait_for(waits_late, e);
  early.open();
  EXPECT_OK(waits_early.synchronize());  // would wait forever if it followed the second record
  EXPECT_FALSE(e.done());
  give_others_time();
  EXPECT_FALSE(waits_late.done());
}

TEST(Event, ARecordThatIsReachedDoesNotFreeAnEarlierWait) {
  Gate blocked;
  const TestStream first, idle, waits;
  TestEvent e;
  blocked.block(first);
  e.record(first);
  wait_for(waits, e);
  e.record(idle);
  EXPECT_TRUE(e.done());
  give_others_time();
  EXPECT_FALSE(waits.done());
}

TEST(Event, TheNullStreamWaitsOnTheCallingThread) {
  std::atomic<int> ran = 0;
  Gate gate;
  const TestStream s;
  TestEvent e;
  gate.block(s);
  count_up(s, ran);
  e.record(s);
  std::thread opener([&] {
    give_others_time();
    gate.open();
  });
  wait_for(nullptr, e);
  EXPECT_EQ(ran.load(), 1);
  opener.join();
  e.record(nullptr);
  EXPECT_TRUE(e.done());
}

TEST(Event, DestroyedWhileRecordAndWaitArePending) {
  std::atomic<int> ran = 0;
  Gate gate;
  const TestStream s, waits;
  concord_event e = nullptr;
  ASSERT_OK(CALL(event, create, 0, CONCORD_EVENT_TIMING, &e));
  gate.block(s);
  EXPECT_OK(CALL(event, record, e, s));
  wait_for(waits, e);
  count_up(waits, ran);
  EXPECT_OK(CALL(event, destroy, e));
  give_others_time();
  EXPECT_EQ(ran.load(), 0) << "the wait outlives the event";
  gate.open();
  EXPECT_OK(waits.synchronize());
  EXPECT_EQ(ran.load(), 1);
}

TEST(Event, OutlivesTheStreamItWasRecordedOn) {
  TestEvent e(CONCORD_EVENT_TIMING);
  Gate gate;
  {
    const TestStream s;
    gate.block(s);
    e.record(s);
  }
  EXPECT_FALSE(e.done());
  gate.open();
  EXPECT_OK(CALL(event, synchronize, e));
  EXPECT_TRUE(e.done());
}

TEST(Event, ElapsedIsAtLeastTheTimeThatTheWorkBetweenTook) {
  const TestStream s;
  TestEvent start(CONCORD_EVENT_TIMING), end(CONCORD_EVENT_TIMING);
  start.record(s);
  const auto nap = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(10)); };
  EXPECT_OK(CALL(stream, launch_host, s, nap, nullptr));
  end.record(s);
  EXPECT_OK(CALL(event, synchronize, end));
  double milliseconds = -1;
  EXPECT_OK(CALL(event, elapsed, start, end, &milliseconds));
  EXPECT_GE(milliseconds, 10.0);
  EXPECT_OK(CALL(event, elapsed, end, start, &milliseconds));
  EXPECT_LE(milliseconds, -10.0);
  start.record(nullptr);  // again, later than |end|
  EXPECT_OK(CALL(event, elapsed, end, start, &milliseconds));
  EXPECT_GE(milliseconds, 0.0);
}

TEST(Event, ElapsedNeedsTimingRecordAndCompletion) {
  const TestStream s;
  double milliseconds = 0;
  TestEvent plain, timed(CONCORD_EVENT_TIMING), never(CONCORD_EVENT_TIMING);
  Gate gate;
  plain.record(s);
  timed.record(nullptr);
  EXPECT_FAILS(CALL(event, elapsed, plain, timed, &milliseconds), CONCORD_STATUS_FAILED_PRECONDITION,
               "start event was created");
  EXPECT_FAILS(CALL(event, elapsed, timed, never, &milliseconds), CONCORD_STATUS_FAILED_PRECONDITION,
               "end event was never");
  TestEvent pending(CONCORD_EVENT_TIMING);
  gate.block(s);
  pending.record(s);
  EXPECT_FAILS(CALL(event, elapsed, timed, pending, &milliseconds), CONCORD_STATUS_FAILED_PRECONDITION, "not reached");
}

TEST(Event, WrongArgumentsAndHandlesAreRefused) {
  concord_event e = nullptr;
  int32_t done = 0;
  double milliseconds = 0;
  EXPECT_REFUSED(CALL(event, create, 5, 0, &e), "device 5");
  EXPECT_REFUSED(CALL(event, create, 0, 6, &e), "flags 0x6");
  EXPECT_REFUSED(CALL(event, create, 0, 0, nullptr), "null");
  ASSERT_OK(CALL(event, create, 0, CONCORD_EVENT_TIMING, &e));
  ASSERT_OK(CALL(event, destroy, e));
  int word = 0;
  for (concord_event bad : {e, static_cast<concord_event>(nullptr), reinterpret_cast<concord_event>(&word)}) {
    EXPECT_REFUSED(CALL(event, destroy, bad), "event");
    EXPECT_REFUSED(CALL(event, record, bad, nullptr), "event");
    EXPECT_REFUSED(CALL(event, query, bad, &done), "event");
    EXPECT_REFUSED(CALL(event, synchronize, bad), "event");
    EXPECT_REFUSED(CALL(event, elapsed, bad, bad, &milliseconds), "event");
    EXPECT_REFUSED(CALL(stream, wait_event, nullptr, bad), "event");
  }
}

// Chains through several streams, many times over, so that a lost wake-up or a wrong order would show.
TEST(Event, LongChainsOverStreamsKeepTheirOrder) {
  const TestStream streams[3];
  TestEvent events[3];
  std::atomic<int> ran = 0;
  for (int round = 0; round < 2000; ++round) {
    for (size_t i = 0; i < 3; ++i) {
      wait_for(streams[i], events[(i + 2) % 3]);
      count_up(streams[i], ran);
      events[i].record(streams[i]);
    }
  }
  EXPECT_OK(CALL(event, synchronize, events[2]));
  EXPECT_EQ(ran.load(), 6000);
}

}  // namespace
}  // namespace concord::cpu::testing
