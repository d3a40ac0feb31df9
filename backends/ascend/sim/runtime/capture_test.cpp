#include "backends/ascend/sim/runtime/capture.h"

#include "backends/ascend/sim/runtime/testing/sim_test.h"

namespace concord::ascend::sim::testing {
namespace {

class CaptureTest : public SimTest {
 protected:
  // Queues "*address += 1".
  static void queue_increment(void* address, void* stream) {
    EXPECT_OK(launch(stream, "increment", [=]() -> int32_t {
      ++*static_cast<int32_t*>(concord_sim_translate(address));
      return 0;
    }));
  }
};

TEST_F(CaptureTest, CapturedWorkRunsWhenItIsAskedToAsOftenAsItIs) {
  TestStream stream;
  void* memory = device_memory(64);
  ASSERT_OK(aclrtMemset(memory, 64, 0, 64));
  void* model = nullptr;
  aclmdlRICaptureStatus status{};
  ASSERT_OK(aclmdlRICaptureBegin(stream, kCaptureThreadLocal));
  EXPECT_OK(aclmdlRICaptureGetInfo(stream, &status, &model));
  EXPECT_EQ(status, kCaptureActive);
  void* const during = model;
  TestStream other;
  EXPECT_FAILS(aclmdlRIExecuteAsync(during, other), kRtParamInvalid, "still being captured");
  queue_increment(memory, stream);
  queue_increment(memory, stream);
  ASSERT_OK(aclmdlRICaptureEnd(stream, &model));
  EXPECT_EQ(model, during);
  uint32_t id = 0;
  EXPECT_OK(aclmdlRIGetId(model, &id));
  EXPECT_NE(id, 0u);
  EXPECT_OK(aclmdlRICaptureGetInfo(stream, &status, nullptr));
  EXPECT_EQ(status, kCaptureNone);
  EXPECT_OK(aclrtSynchronizeStream(stream));
  EXPECT_EQ(read_word(memory), 0);
  for (int i = 0; i < 3; ++i) EXPECT_OK(aclmdlRIExecuteAsync(model, stream));
  EXPECT_OK(aclrtSynchronizeStream(stream));
  EXPECT_EQ(read_word(memory), 6);
  EXPECT_OK(aclmdlRIDestroy(model));
  EXPECT_FAILS(aclmdlRIExecuteAsync(model, stream), kRtInvalidHandle, "was destroyed");
}

TEST_F(CaptureTest, AnotherStreamJoinsByAnEventAndHasToBeJoined) {
  TestStream stream;
  TestStream side;
  void* fork = nullptr;
  void* join = nullptr;
  void* memory = device_memory(64);
  void* copy = device_memory(64);
  ASSERT_OK(aclrtCreateEventExWithFlag(&fork, kEventSync));
  ASSERT_OK(aclrtCreateEventExWithFlag(&join, kEventSync));
  for (const bool joined : {true, false}) {
    ASSERT_OK(aclrtMemset(memory, 64, 0, 64));
    ASSERT_OK(aclmdlRICaptureBegin(stream, kCaptureRelaxed));
    queue_word(memory, 5, stream);
    EXPECT_OK(aclrtRecordEvent(fork, stream));
    EXPECT_OK(aclrtStreamWaitEvent(side, fork));
    queue_copy_word(copy, memory, side);
    EXPECT_OK(aclrtRecordEvent(join, side));
    if (joined) {
      EXPECT_OK(aclrtStreamWaitEvent(stream, join));
    }
    void* model = nullptr;
    if (!joined) {
      EXPECT_FAILS(aclmdlRICaptureEnd(stream, &model), kRtStreamUnjoined, "does not wait for its last work");
      continue;
    }
    ASSERT_OK(aclmdlRICaptureEnd(stream, &model));
    EXPECT_EQ(read_word(memory), 0);
    EXPECT_OK(aclmdlRIExecuteAsync(model, stream));
    EXPECT_OK(aclrtSynchronizeStream(stream));
    EXPECT_EQ(read_word(copy), 5);
    EXPECT_OK(aclmdlRIDestroy(model));
  }
  EXPECT_OK(aclrtSynchronizeStream(side)) << "it is free again";
  EXPECT_OK(aclrtDestroyEvent(fork));
  EXPECT_OK(aclrtDestroyEvent(join));
}

TEST_F(CaptureTest, WhatCannotBeCapturedSpoilsTheCapture) {
  TestStream stream;
  void* model = nullptr;
  void* memory = device_memory(64);
  int32_t word = 0;
  ASSERT_OK(aclmdlRICaptureBegin(stream, kCaptureGlobal));
  EXPECT_FAILS(aclrtSynchronizeStream(stream), kRtStreamCaptured, "invalidated");
  EXPECT_FAILS(aclmdlRICaptureEnd(stream, &model), kRtCaptureInvalidated, "cannot be captured");
  EXPECT_EQ(model, nullptr);

  ASSERT_OK(aclmdlRICaptureBegin(stream, kCaptureGlobal));
  EXPECT_FAILS(aclrtMemcpy(&word, 4, memory, 4, kMemcpyDeviceToHost), kRtCaptureModeNotSupport, "synchronous copy");
  EXPECT_EQ(aclmdlRICaptureEnd(stream, &model), kRtCaptureInvalidated);

  // A thread may free itself of its captures.
  aclmdlRICaptureMode mode = kCaptureRelaxed;
  ASSERT_OK(aclmdlRICaptureBegin(stream, kCaptureGlobal));
  EXPECT_OK(aclmdlRICaptureThreadExchangeMode(&mode));
  EXPECT_EQ(mode, kCaptureGlobal);
  EXPECT_OK(aclrtMemcpy(&word, 4, memory, 4, kMemcpyDeviceToHost));
  EXPECT_OK(aclmdlRICaptureThreadExchangeMode(&mode));
  EXPECT_EQ(mode, kCaptureRelaxed);
  EXPECT_OK(aclmdlRICaptureEnd(stream, &model));
  EXPECT_OK(aclmdlRIDestroy(model));

  ASSERT_OK(aclmdlRICaptureBegin(stream, kCaptureRelaxed));
  EXPECT_OK(aclrtMemcpy(&word, 4, memory, 4, kMemcpyDeviceToHost));
  EXPECT_OK(aclmdlRICaptureEnd(stream, &model));
  EXPECT_OK(aclmdlRIDestroy(model));

  void* outside = nullptr;
  TestStream other;
  ASSERT_OK(aclrtCreateEventExWithFlag(&outside, kEventSync));
  EXPECT_OK(aclrtRecordEvent(outside, other));
  ASSERT_OK(aclmdlRICaptureBegin(stream, kCaptureRelaxed));
  EXPECT_FAILS(aclrtStreamWaitEvent(stream, outside), kRtCaptureDependency, "not part of the capture");
  EXPECT_EQ(aclmdlRICaptureEnd(stream, &model), kRtCaptureInvalidated);
  EXPECT_OK(aclrtDestroyEvent(outside));
}

TEST_F(CaptureTest, AnEventRecordedInACaptureIsNotOneToAskAbout) {
  TestStream stream;
  void* event = nullptr;
  void* model = nullptr;
  float ms = 0;
  aclrtEventRecordedStatus status{};
  ASSERT_OK(aclrtCreateEventExWithFlag(&event, kEventSync | kEventTimeLine));
  ASSERT_OK(aclmdlRICaptureBegin(stream, kCaptureRelaxed));
  EXPECT_OK(aclrtRecordEvent(event, stream));
  EXPECT_FAILS(aclrtQueryEventStatus(event, &status), kRtEventCaptured, "part of a capture");
  EXPECT_EQ(aclrtSynchronizeEvent(event), kRtEventCaptured);
  EXPECT_EQ(aclrtEventElapsedTime(&ms, event, event), kRtEventTimestampInvalid);
  EXPECT_OK(aclmdlRICaptureEnd(stream, &model));
  EXPECT_OK(aclrtSynchronizeEvent(event));
  EXPECT_TRUE(event_done(event)) << "nothing is pending";
  EXPECT_OK(aclrtRecordEvent(event, stream));
  EXPECT_OK(aclrtSynchronizeEvent(event));
  EXPECT_OK(aclrtEventElapsedTime(&ms, event, event));
  void* plain = nullptr;
  ASSERT_OK(aclrtCreateEvent(&plain));
  ASSERT_OK(aclmdlRICaptureBegin(stream, kCaptureRelaxed));
  EXPECT_FAILS(aclrtRecordEvent(plain, stream), kRtFeatureNotSupport, "in a capture");
  void* second = nullptr;
  EXPECT_OK(aclmdlRICaptureEnd(stream, &second));
  for (void* one : {model, second}) EXPECT_OK(aclmdlRIDestroy(one));
  for (void* one : {event, plain}) EXPECT_OK(aclrtDestroyEvent(one));
}

TEST_F(CaptureTest, ACaptureIsEndedWhereItBegan) {
  TestStream stream;
  TestStream other;
  void* model = nullptr;
  EXPECT_FAILS(aclmdlRICaptureBegin(nullptr, kCaptureRelaxed), kRtCaptureImplicit, "default stream");
  EXPECT_FAILS(aclmdlRICaptureEnd(stream, &model), kRtStreamNotCaptured, "not being captured");
  EXPECT_FAILS(aclmdlRICaptureBegin(stream, static_cast<aclmdlRICaptureMode>(9)), kRtParamInvalid, "mode 9");
  ASSERT_OK(aclmdlRICaptureBegin(stream, kCaptureThreadLocal));
  on_fresh_thread([&] {
    EXPECT_OK(aclrtSetDevice(0));
    void* out = nullptr;
    EXPECT_FAILS(aclmdlRICaptureEnd(stream, &out), kRtCaptureWrongThread, "another thread");
    int32_t word = 0;
    void* memory = device_memory(64);
    EXPECT_OK(aclrtMemcpy(&word, 4, memory, 4, kMemcpyDeviceToHost)) << "forbidden to the capturing thread only";
  });
  ASSERT_OK(aclmdlRICaptureEnd(stream, &model));
  EXPECT_OK(aclmdlRIDestroy(model));
}

}  // namespace
}  // namespace concord::ascend::sim::testing
