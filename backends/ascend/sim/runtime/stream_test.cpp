#include "backends/ascend/sim/runtime/stream.h"

#include <pthread.h>

#include "backends/ascend/sim/runtime/machine.h"
#include "backends/ascend/sim/runtime/testing/sim_test.h"

namespace concord::ascend::sim::testing {
namespace {

class StreamTest : public SimTest {};

TEST_F(StreamTest, WorkRunsInItsOrder) {
  TestStream stream;
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_OK(launch(stream, "work", [&order, i]() -> int32_t {
      order.push_back(i);
      return 0;
    }));
  }
  ASSERT_OK(aclrtSynchronizeStream(stream));
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_F(StreamTest, TwoStreamsDoNotWaitForEachOther) {
  TestStream held;
  TestStream other;
  Gate gate;
  gate.hold(held);
  void* memory = device_memory(64);
  queue_word(memory, 1, other);
  EXPECT_OK(aclrtSynchronizeStream(other));
  EXPECT_EQ(read_word(memory), 1);
  EXPECT_FALSE(stream_done(held));
}

TEST_F(StreamTest, TheNullStreamIsOneOfItsOwn) {
  Gate gate;
  TestStream other;
  void* memory = device_memory(64);
  gate.hold(nullptr);
  queue_word(memory, 1, nullptr);
  EXPECT_OK(aclrtSynchronizeStream(other));
  EXPECT_FALSE(stream_done(nullptr));
  gate.open();
  EXPECT_OK(aclrtSynchronizeStream(nullptr));
  EXPECT_EQ(read_word(memory), 1);
}

TEST_F(StreamTest, AQueryDoesNotCountWorkThatRunsAsDone) {
  TestStream stream;
  Gate gate;
  EXPECT_TRUE(stream_done(stream));
  gate.hold(stream);
  gate.await();
  EXPECT_FALSE(stream_done(stream));
  gate.open();
  EXPECT_OK(aclrtSynchronizeStream(stream));
  EXPECT_TRUE(stream_done(stream));
}

TEST_F(StreamTest, ASynchronizationEndsAtItsTimeout) {
  TestStream stream;
  Gate gate;
  gate.hold(stream);
  EXPECT_FAILS(aclrtSynchronizeStreamWithTimeout(stream, 10), kRtStreamSyncTimeout, "within 10 ms");
  EXPECT_FAILS(aclrtSynchronizeStreamWithTimeout(stream, 0), kRtParamInvalid, "must be > 0");
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, -2), kRtParamInvalid);
  gate.open();
  EXPECT_OK(aclrtSynchronizeStreamWithTimeout(stream, -1));
}

TEST_F(StreamTest, DestroyingWaitsForTheWorkAndByForceDropsIt) {
  void* memory = device_memory(64);
  write_word(memory, 0);
  {
    TestStream stream;
    queue_word(memory, 1, stream);
    void* handle = stream.release();
    EXPECT_OK(aclrtDestroyStream(handle));
    EXPECT_EQ(read_word(memory), 1);
    EXPECT_FAILS(aclrtSynchronizeStream(handle), kRtInvalidHandle, "was destroyed");
    EXPECT_FAILS(aclrtDestroyStream(handle), kRtInvalidHandle, "was destroyed");
  }
  TestStream stream;
  Gate gate;
  gate.hold(stream);
  gate.await();
  queue_word(memory, 2, stream);
  EXPECT_OK(aclrtDestroyStreamForce(stream.release()));
  gate.open();
  EXPECT_OK(aclrtSynchronizeDevice());
  EXPECT_EQ(read_word(memory), 1);
  EXPECT_EQ(aclrtDestroyStream(nullptr), kAclInvalidParam);
}

TEST_F(StreamTest, WhatIsNoStreamIsRefused) {
  void* event = nullptr;
  ASSERT_OK(aclrtCreateEventExWithFlag(&event, kEventSync));
  int local = 0;
  EXPECT_FAILS(aclrtSynchronizeStream(&local), kRtInvalidHandle, "was not created by this runtime");
  EXPECT_FAILS(aclrtSynchronizeStream(event), kRtInvalidHandle, "is not a valid stream");
  EXPECT_OK(aclrtDestroyEvent(event));
}

TEST_F(StreamTest, StreamFlagsAreChecked) {
  void* stream = nullptr;
  EXPECT_OK(aclrtCreateStreamWithConfig(&stream, 0, kStreamFastLaunch | kStreamFastSync));
  EXPECT_OK(aclrtDestroyStream(stream));
  EXPECT_FAILS(aclrtCreateStreamWithConfig(&stream, 0, 0x4), kRtFeatureNotSupport, "0x4");
  EXPECT_EQ(aclrtCreateStream(nullptr), kAclInvalidParam);
}

TEST_F(StreamTest, ADeviceHasSoManyStreamsAndNoMore) {
  std::vector<void*> streams;
  void* stream = nullptr;
  for (int i = 1; i < kMaxStreams; ++i) {  // the default stream is one of them
    ASSERT_OK(aclrtCreateStream(&stream));
    streams.push_back(stream);
  }
  EXPECT_FAILS(aclrtCreateStream(&stream), kRtNoStreamResource, "1984 are in use");
  EXPECT_OK(aclrtDestroyStream(streams.back()));
  EXPECT_OK(aclrtCreateStream(&streams.back()));
  for (void* one : streams) EXPECT_OK(aclrtDestroyStream(one));
}

// ------------------------------------------------------------------------------------------------------------ failures

TEST_F(StreamTest, AFailureComesOutOfALaterSynchronizationOnce) {
  TestStream stream;
  void* memory = device_memory(64);
  ASSERT_OK(launch(stream, "aclnnBroken", []() -> int32_t {
    concord_sim_set_message("shapes differ");
    return kRtAicoreException;
  }));
  queue_word(memory, 4, stream);
  EXPECT_FAILS(aclrtSynchronizeStream(stream), kRtAicoreException, "aclnnBroken failed on its stream: shapes differ");
  EXPECT_EQ(read_word(memory), 4) << "a stream goes on after a failure";
  EXPECT_OK(aclrtSynchronizeStream(stream));
}

TEST_F(StreamTest, AStreamThatStopsOnFailureStaysFailed) {
  TestStream stream;
  void* memory = device_memory(64);
  write_word(memory, 0);
  ASSERT_OK(aclrtSetStreamFailureMode(stream, kFailureStop));
  Gate gate;
  gate.hold(stream);
  ASSERT_OK(launch(stream, "aclnnBroken", []() -> int32_t { return kRtAicoreException; }));
  queue_word(memory, 4, stream);
  gate.open();
  EXPECT_EQ(aclrtSynchronizeStream(stream), kRtAicoreException);
  EXPECT_EQ(aclrtSynchronizeStream(stream), kRtAicoreException);
  EXPECT_EQ(read_word(memory), 0) << "later work is dropped";
  EXPECT_EQ(launch(stream, "more", []() -> int32_t { return 0; }), kRtAicoreException);
  EXPECT_FAILS(aclrtSetStreamFailureMode(stream, 7), kRtParamInvalid, "mode 7");
  EXPECT_FAILS(aclrtSetStreamFailureMode(nullptr, 1), kRtFeatureNotSupport, "default stream");
}

TEST_F(StreamTest, SynchronizeDeviceTellsTheFailureOfAnyStream) {
  TestStream stream;
  ASSERT_OK(launch(stream, "aclnnBroken", []() -> int32_t { return kRtAicpuException; }));
  EXPECT_EQ(aclrtSynchronizeDevice(), kRtAicpuException);
  EXPECT_OK(aclrtSynchronizeDevice());
}

TEST_F(StreamTest, AnAbortEndsWaitersDropsWorkAndLeavesTheStreamUsable) {
  TestStream stream;
  Gate gate;
  void* memory = device_memory(64);
  write_word(memory, 0);
  gate.hold(stream);
  gate.await();
  queue_word(memory, 1, stream);
  std::atomic<bool> ended{false};
  std::thread waiter([&] {
    EXPECT_OK(aclrtSetDevice(0));
    EXPECT_FAILS(aclrtSynchronizeStream(stream), kRtStreamAbort, "aborted");
    ended.store(true);
  });
  while (!ended.load()) {  // the waiter may not wait yet when the first one comes
    EXPECT_OK(aclrtStreamAbort(stream));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  waiter.join();
  gate.open();
  EXPECT_OK(aclrtSynchronizeStream(stream));
  EXPECT_EQ(read_word(memory), 0);
  queue_word(memory, 2, stream);
  EXPECT_OK(aclrtSynchronizeStream(stream));
  EXPECT_EQ(read_word(memory), 2);
  EXPECT_EQ(aclrtStreamAbort(nullptr), kAclInvalidParam);
}

TEST_F(StreamTest, AnAbortEndsAStreamThatWaitsForAnEvent) {
  TestStream waits;
  TestStream held;
  Gate gate;
  void* event = nullptr;
  ASSERT_OK(aclrtCreateEventExWithFlag(&event, kEventSync));
  gate.hold(held);
  ASSERT_OK(aclrtRecordEvent(event, held));
  ASSERT_OK(aclrtStreamWaitEvent(waits, event));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_OK(aclrtStreamAbort(waits));
  EXPECT_OK(aclrtSynchronizeStream(waits));
  EXPECT_FALSE(stream_done(held));
  EXPECT_OK(aclrtDestroyEvent(event));
}

TEST_F(StreamTest, AStopFunctionEndsTheWorkThatRuns) {
  TestStream stream;
  auto running = std::make_shared<std::atomic<bool>>(false);
  auto stop = std::make_shared<std::atomic<bool>>(false);
  ASSERT_OK(launch(
      stream, "endless",
      [=]() -> int32_t {
        running->store(true);
        while (!stop->load()) std::this_thread::yield();
        return kRtAicoreTimeout;
      },
      [=] { stop->store(true); }));
  while (!running->load()) std::this_thread::yield();
  EXPECT_OK(aclrtStreamAbort(stream));
  EXPECT_OK(aclrtSynchronizeStream(stream)) << "what ends by an abort is no failure";
}

TEST_F(StreamTest, StateIsFreedWhetherWorkRunsOrNot) {
  auto counted = std::make_shared<int>(0);
  TestStream stream;
  ASSERT_OK(launch(stream, "work", [counted]() -> int32_t { return 0; }));
  EXPECT_OK(aclrtSynchronizeStream(stream));
  EXPECT_EQ(counted.use_count(), 1);
  int local = 0;
  EXPECT_EQ(launch(&local, "work", [counted]() -> int32_t { return 0; }), kRtInvalidHandle);
  EXPECT_EQ(counted.use_count(), 1);
}

// ----------------------------------------------------------------------------------------------------------- callbacks

TEST_F(StreamTest, ACallbackRunsOnTheThreadThatSubscribed) {
  TestStream stream;
  EXPECT_FAILS(aclrtLaunchCallback([](void*) {}, nullptr, kCallbackBlock, stream), kRtStreamNoCallback, "subscribe");
  EXPECT_FAILS(aclrtProcessReport(1), kRtThreadSubscribe, "not subscribed");
  std::atomic<bool> go_on{true};
  std::atomic<uint64_t> id{0};
  std::thread listener([&] {
    EXPECT_OK(aclrtSetDevice(0));
    EXPECT_OK(aclrtSubscribeReport(static_cast<uint64_t>(pthread_self()), stream));
    EXPECT_EQ(aclrtProcessReport(1), kRtWaitTimeout);
    id.store(static_cast<uint64_t>(pthread_self()));
    while (go_on.load()) aclrtProcessReport(10);
  });
  while (id.load() == 0) std::this_thread::yield();
  uint64_t seen = 0;
  void* memory = device_memory(64);
  EXPECT_OK(aclrtLaunchCallback([](void* at) { *static_cast<uint64_t*>(at) = static_cast<uint64_t>(pthread_self()); },
                                &seen, kCallbackBlock, stream));
  queue_word(memory, 1, stream);
  EXPECT_OK(aclrtSynchronizeStream(stream));
  EXPECT_EQ(seen, id.load());
  EXPECT_OK(aclrtUnSubscribeReport(id.load(), stream));
  EXPECT_EQ(aclrtUnSubscribeReport(id.load(), stream), kRtThreadSubscribe);
  go_on.store(false);
  listener.join();
}

}  // namespace
}  // namespace concord::ascend::sim::testing
