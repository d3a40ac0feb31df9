#include "backends/cpu/testing/harness.h"

#include <malloc.h>

#include <filesystem>
#include <stdexcept>
#include <vector>

namespace concord::cpu::testing {
namespace {

int threads_of_process() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) count += entry.exists() ? 1 : 0;
  return count;
}

TEST(Stream, NullStreamRunsInlineOnTheCallingThread) {
  std::thread::id ran_on;
  const auto note = [](void* user) { *static_cast<std::thread::id*>(user) = std::this_thread::get_id(); };
  EXPECT_OK(CALL(stream, launch_host, nullptr, note, &ran_on));
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  int32_t done = 0;
  EXPECT_OK(CALL(stream, query, nullptr, &done));
  EXPECT_EQ(done, 1);
  EXPECT_OK(CALL(stream, synchronize, nullptr));
}

TEST(Stream, WorkRunsInTheOrderItWasQueued) {
  struct Step {
    std::vector<int>* order;
    int number;
  };
  std::vector<int> order;
  std::vector<Step> steps(10000);
  {
    const TestStream s;
    for (int i = 0; i < 10000; ++i) {
      steps[static_cast<size_t>(i)] = {&order, i};
      const auto run = [](void* user) {
        const auto* step = static_cast<Step*>(user);
        step->order->push_back(step->number);
      };
      ASSERT_OK(CALL(stream, launch_host, s, run, &steps[static_cast<size_t>(i)]));
    }
    EXPECT_OK(s.synchronize());
  }
  ASSERT_EQ(order.size(), 10000u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(Stream, QueryIsNotDoneWhileTheLastTaskRuns) {
  Gate gate;
  const TestStream s;
  EXPECT_TRUE(s.done());
  gate.block(s);
  gate.await_entry();
  EXPECT_FALSE(s.done());
  gate.open();
  EXPECT_OK(s.synchronize());
  EXPECT_TRUE(s.done());
}

TEST(Stream, SynchronizeWaitsForAllThatWasQueued) {
  std::atomic<int> ran = 0;
  Gate gate;
  const TestStream s;
  gate.block(s);
  for (int i = 0; i < 100; ++i) count_up(s, ran);
  std::thread opener([&] {
    give_others_time();
    EXPECT_EQ(ran.load(), 0);
    gate.open();
  });
  EXPECT_OK(s.synchronize());
  EXPECT_EQ(ran.load(), 100);
  opener.join();
}

TEST(Stream, DifferentStreamsRunAtTheSameTime) {
  Gate first, second;
  const TestStream a, b;
  first.block(a);
  second.block(b);
  first.await_entry();  // would wait forever if b ran only after a
  second.await_entry();
}

TEST(Stream, ManyThreadsQueueOnOneStream) {
  std::atomic<int> ran = 0;
  const TestStream s;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) count_up(s, ran);
      EXPECT_OK(s.synchronize());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran.load(), 8000);
}

TEST(Stream, DestroyNeitherWaitsForNorLosesQueuedWork) {
  std::atomic<int> ran = 0;
  Gate gate;
  concord_stream s = nullptr;
  ASSERT_OK(CALL(stream, create, 0, 0, &s));
  gate.block(s);
  count_up(s, ran);
  EXPECT_OK(CALL(stream, destroy, s));  // would wait forever if it waited
  EXPECT_EQ(ran.load(), 0);
  gate.open();
  EXPECT_OK(CALL(device, synchronize, 0));  // knows destroyed streams too
  EXPECT_EQ(ran.load(), 1);
}

TEST(Stream, DeviceSynchronizeWaitsForItsOwnDeviceOnly) {
  std::atomic<int> ran = 0;
  Gate blocked;
  const TestStream on_0(0), on_1(1);
  blocked.block(on_1);
  blocked.await_entry();
  count_up(on_0, ran);
  EXPECT_OK(CALL(device, synchronize, 0));
  EXPECT_EQ(ran.load(), 1);
  EXPECT_FALSE(on_1.done());
}

TEST(Stream, FailureOfQueuedWorkComesOutOfSynchronizeOnce) {
  const TestStream s;
  std::atomic<int> ran = 0;
  const auto fail = [](void* user) { throw std::runtime_error(static_cast<const char*>(user)); };
  ASSERT_OK(CALL(stream, launch_host, s, fail, const_cast<char*>("the first")));
  ASSERT_OK(CALL(stream, launch_host, s, fail, const_cast<char*>("the second")));
  count_up(s, ran);
  EXPECT_FAILS(CALL(device, synchronize, 0), CONCORD_STATUS_INTERNAL, "the first");  // reported, kept for the stream
  EXPECT_FAILS(s.synchronize(), CONCORD_STATUS_INTERNAL, "the first");
  EXPECT_OK(s.synchronize());
  EXPECT_OK(CALL(device, synchronize, 0));
  EXPECT_EQ(ran.load(), 1) << "work behind a failure still runs";
}

TEST(Stream, FailureOnTheNullStreamComesOutOfTheCall) {
  const auto fail = [](void*) { throw std::runtime_error("inline"); };
  EXPECT_FAILS(CALL(stream, launch_host, nullptr, fail, nullptr), CONCORD_STATUS_INTERNAL, "inline");
}

TEST(Stream, DestroyedAndGarbageHandlesAreRefusedEverywhere) {
  concord_stream freed = nullptr;
  ASSERT_OK(CALL(stream, create, 0, 0, &freed));
  ASSERT_OK(CALL(stream, destroy, freed));
  int word = 0;
  int32_t done = 0;
  const auto nothing = [](void*) {};
  TestEvent e;
  EXPECT_REFUSED(CALL(stream, destroy, freed), "was destroyed");
  EXPECT_REFUSED(CALL(stream, synchronize, freed), "was destroyed");
  for (concord_stream bad :
       {freed, reinterpret_cast<concord_stream>(&word), reinterpret_cast<concord_stream>(uintptr_t{8}),
        reinterpret_cast<concord_stream>(static_cast<concord_event>(e)),
        reinterpret_cast<concord_stream>(UINTPTR_MAX)}) {
    EXPECT_REFUSED(CALL(stream, destroy, bad), "stream");
    EXPECT_REFUSED(CALL(stream, synchronize, bad), "stream");
    EXPECT_REFUSED(CALL(stream, query, bad, &done), "stream");
    EXPECT_REFUSED(CALL(stream, wait_event, bad, e), "stream");
    EXPECT_REFUSED(CALL(stream, launch_host, bad, nothing, nullptr), "stream");
    EXPECT_REFUSED(CALL(event, record, e, bad), "stream");
    EXPECT_REFUSED(CALL(memory, fill_on_stream, &word, 0, 4, bad), "stream");
  }
  concord_stream reused = nullptr;  // takes the freed one's place, and is still another
  ASSERT_OK(CALL(stream, create, 0, 0, &reused));
  EXPECT_NE(reused, freed);
  EXPECT_REFUSED(CALL(stream, synchronize, freed), "was destroyed");
  EXPECT_OK(CALL(stream, destroy, reused));
}

TEST(Stream, WrongArgumentsAreRefused) {
  concord_stream s = nullptr;
  int32_t number = 0;
  EXPECT_REFUSED(CALL(stream, create, kDevices, 0, &s), "device 3 does not exist; there are 3");
  EXPECT_REFUSED(CALL(stream, create, -1, 0, &s), "device -1");
  EXPECT_REFUSED(CALL(stream, create, 0, 0, nullptr), "null");
  EXPECT_REFUSED(CALL(stream, destroy, nullptr), "null stream");
  EXPECT_REFUSED(CALL(stream, query, nullptr, nullptr), "null");
  EXPECT_REFUSED(CALL(stream, wait_event, nullptr, nullptr), "the event is null");
  EXPECT_REFUSED(CALL(stream, launch_host, nullptr, nullptr, nullptr), "function");
  EXPECT_REFUSED(CALL(stream, priority_range, 0, nullptr, &number), "out_least");
  EXPECT_REFUSED(CALL(stream, priority_range, 0, &number, nullptr), "out_greatest");
  EXPECT_REFUSED(CALL(stream, priority_range, 9, &number, &number), "device 9");
}

TEST(Stream, PrioritiesAreOneValueAndOthersAreClamped) {
  int32_t least = 7, greatest = 7;
  EXPECT_OK(CALL(stream, priority_range, 1, &least, &greatest));
  EXPECT_EQ(least, 0);
  EXPECT_EQ(greatest, 0);
  concord_stream s = nullptr;
  EXPECT_OK(CALL(stream, create, 1, -100, &s));
  EXPECT_OK(CALL(stream, destroy, s));
}

TEST(Stream, ThousandsOfCyclesLeaveNoThreadAndNoMemory) {
  std::atomic<int> ran = 0;
  const auto cycle = [&] {
    concord_stream s = nullptr;
    ASSERT_OK(CALL(stream, create, 0, 0, &s));
    count_up(s, ran);
    if (ran.load() % 2 == 0) {
      ASSERT_OK(CALL(stream, synchronize, s));
    }
    ASSERT_OK(CALL(stream, destroy, s));
  };
  for (int i = 0; i < 100; ++i) cycle();
  ASSERT_OK(CALL(device, synchronize, 0));
  const int threads_before = threads_of_process();  // this one, and where it is so, a sanitizer's own
  const size_t bytes_before = mallinfo2().uordblks;
  for (int i = 0; i < 3000; ++i) cycle();
  ASSERT_OK(CALL(device, synchronize, 0));
  EXPECT_EQ(ran.load(), 3100);
  for (int i = 0; threads_of_process() > threads_before && i < 1000; ++i)
    give_others_time();  // for the last ones to go
  EXPECT_LE(threads_of_process(), threads_before);
  EXPECT_LT(mallinfo2().uordblks, bytes_before + (64 << 10));
}

TEST(Stream, ThreadsDoNotTakeTheSignalsOfTheProcess) {
  static std::atomic<std::thread::id> handled_on;
  Gate gate;
  const TestStream s;
  gate.block(s);
  gate.await_entry();
  signal(SIGUSR1, [](int) { handled_on.store(std::this_thread::get_id()); });
  kill(getpid(), SIGUSR1);
  while (handled_on.load() == std::thread::id()) std::this_thread::yield();
  EXPECT_EQ(handled_on.load(), std::this_thread::get_id());
  signal(SIGUSR1, SIG_DFL);
}

}  // namespace
}  // namespace concord::cpu::testing
