#include "backends/ascend/sim/runtime/event.h"

#include "backends/ascend/sim/runtime/testing/sim_test.h"

namespace concord::ascend::sim::testing {
namespace {

class EventTest : public SimTest {
 protected:
  using Create = aclError (*)(aclrtEvent*, uint32_t);
  void* make(Create create, uint32_t flags) {
    void* event = nullptr;
    EXPECT_OK(create(&event, flags));
    made_.push_back(event);
    return event;
  }
  void* reusable(uint32_t flags = kEventSync) { return make(aclrtCreateEventExWithFlag, flags); }
  void* flag(uint32_t flags = kEventSync) { return make(aclrtCreateEventWithFlag, flags); }
  void* plain() {
    void* event = nullptr;
    EXPECT_OK(aclrtCreateEvent(&event));
    made_.push_back(event);
    return event;
  }
  void TearDown() override {
    for (void* event : made_) aclrtDestroyEvent(event);
    SimTest::TearDown();
  }

  TestStream first_;
  TestStream second_;
  void* memory_ = device_memory(64);
  void* copy_ = device_memory(64);
  std::vector<void*> made_;
};

TEST_F(EventTest, AStreamWaitsForWhatWasQueuedBeforeTheRecord) {
  for (void* event : {reusable(), reusable(kEventSync | kEventTimeLine), plain(), flag()}) {
    write_word(memory_, 0);
    Gate gate;
    gate.hold(first_);
    queue_word(memory_, 7, first_);
    EXPECT_OK(aclrtRecordEvent(event, first_));
    EXPECT_OK(aclrtStreamWaitEvent(second_, event));
    queue_copy_word(copy_, memory_, second_);
    EXPECT_FALSE(event_done(event));
    EXPECT_FALSE(stream_done(second_));
    gate.open();
    EXPECT_OK(aclrtSynchronizeStream(second_));
    EXPECT_TRUE(event_done(event));
    EXPECT_EQ(read_word(copy_), 7);
    EXPECT_OK(aclrtSynchronizeStream(first_));
  }
}

TEST_F(EventTest, WithoutSyncNoStreamCanWaitForIt) {
  for (void* event : {reusable(kEventTimeLine), flag(kEventTimeLine), reusable(kEventStreamProgress)}) {
    EXPECT_OK(aclrtRecordEvent(event, first_));
    EXPECT_FAILS(aclrtStreamWaitEvent(second_, event), kRtFeatureNotSupport, "without ACL_EVENT_SYNC");
    EXPECT_OK(aclrtSynchronizeEvent(event));
  }
  EXPECT_FAILS(aclrtResetEvent(flag(kEventTimeLine), first_), kRtFeatureNotSupport, "ACL_EVENT_SYNC");
}

TEST_F(EventTest, WithoutARecordTheKindsDiffer) {
  EXPECT_TRUE(event_done(reusable()));
  EXPECT_OK(aclrtStreamWaitEvent(first_, reusable()));
  EXPECT_OK(aclrtSynchronizeStream(first_));
  EXPECT_FALSE(event_done(plain()));
  EXPECT_FAILS(aclrtStreamWaitEvent(first_, plain()), kRtParamInvalid, "has not been recorded");
  EXPECT_FALSE(event_done(flag()));
  for (void* event : {reusable(), plain(), flag()}) EXPECT_OK(aclrtSynchronizeEvent(event));
}

TEST_F(EventTest, AWaitKeepsTheRecordThatWasCurrent) {
  for (void* event : {reusable(), plain()}) {
    Gate early;
    Gate late;
    early.hold(first_);
    EXPECT_OK(aclrtRecordEvent(event, first_));
    EXPECT_OK(aclrtStreamWaitEvent(second_, event));
    late.hold(first_);
    EXPECT_OK(aclrtRecordEvent(event, first_));
    early.open();
    EXPECT_OK(aclrtSynchronizeStream(second_)) << "the wait was for the first record";
    EXPECT_FALSE(event_done(event)) << "a query is about the newest";
    late.open();
    EXPECT_OK(aclrtSynchronizeEvent(event));
    EXPECT_TRUE(event_done(event));
  }
}

TEST_F(EventTest, ARecordAgainIsWaitedFor) {
  for (void* event : {reusable(), plain()}) {
    EXPECT_OK(aclrtRecordEvent(event, first_));
    EXPECT_OK(aclrtSynchronizeEvent(event));
    Gate gate;
    gate.hold(first_);
    EXPECT_OK(aclrtRecordEvent(event, first_));
    EXPECT_OK(aclrtStreamWaitEvent(second_, event));
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(second_, 10), kRtStreamSyncTimeout);
    gate.open();
    EXPECT_OK(aclrtSynchronizeStream(second_));
    EXPECT_OK(aclrtSynchronizeStream(first_));
  }
}

// The trap that this kind is: the flag is still set from the first record.
TEST_F(EventTest, AFlagRecordedAgainWithoutResetIsNotWaitedFor) {
  void* event = flag();
  EXPECT_OK(aclrtRecordEvent(event, first_));
  EXPECT_OK(aclrtSynchronizeEvent(event));
  Gate gate;
  gate.hold(first_);
  EXPECT_OK(aclrtRecordEvent(event, first_));
  EXPECT_OK(aclrtStreamWaitEvent(second_, event));
  EXPECT_OK(aclrtSynchronizeStream(second_)) << "it passed, though the second record is not reached";
  EXPECT_FALSE(stream_done(first_));
}

TEST_F(EventTest, AFlagThatWasResetIsWaitedFor) {
  void* event = flag();
  EXPECT_OK(aclrtRecordEvent(event, first_));
  EXPECT_OK(aclrtStreamWaitEvent(second_, event));
  EXPECT_OK(aclrtResetEvent(event, second_));
  EXPECT_OK(aclrtSynchronizeStream(second_));
  Gate gate;
  gate.hold(first_);
  EXPECT_OK(aclrtRecordEvent(event, first_));
  EXPECT_OK(aclrtStreamWaitEvent(second_, event));
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(second_, 10), kRtStreamSyncTimeout);
  aclrtEventWaitStatus status{};
  EXPECT_OK(aclrtQueryEventWaitStatus(event, &status));
  EXPECT_EQ(status, kEventWaitNotReady);
  gate.open();
  EXPECT_OK(aclrtSynchronizeStream(second_));
  EXPECT_OK(aclrtQueryEventWaitStatus(event, &status));
  EXPECT_EQ(status, kEventWaitComplete);
}

TEST_F(EventTest, AFlagIsWaitedForEvenWhereItIsRecordedLater) {
  void* event = flag();
  EXPECT_OK(aclrtStreamWaitEvent(second_, event));
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(second_, 10), kRtStreamSyncTimeout);
  EXPECT_OK(aclrtRecordEvent(event, first_));
  EXPECT_OK(aclrtSynchronizeStream(second_));
}

TEST_F(EventTest, OnlyFlagsCanBeReset) {
  EXPECT_FAILS(aclrtResetEvent(reusable(), first_), kRtFeatureNotSupport, "aclrtCreateEventWithFlag");
  EXPECT_FAILS(aclrtResetEvent(plain(), first_), kRtFeatureNotSupport, "aclrtCreateEventWithFlag");
  aclrtEventWaitStatus status{};
  EXPECT_EQ(aclrtQueryEventWaitStatus(reusable(), &status), kRtFeatureNotSupport);
}

TEST_F(EventTest, AWaitEndsAtItsTimeout) {
  void* event = flag();
  EXPECT_OK(aclrtStreamWaitEventWithTimeout(second_, event, 10));
  EXPECT_FAILS(aclrtSynchronizeStream(second_), kRtTaskTimeout, "waited longer for an event");
  Gate gate;
  void* other = reusable();
  gate.hold(first_);
  EXPECT_OK(aclrtRecordEvent(other, first_));
  EXPECT_FAILS(aclrtSynchronizeEventWithTimeout(other, 10), kRtEventSyncTimeout, "within 10 ms");
  EXPECT_EQ(aclrtSynchronizeEventWithTimeout(other, 0), kRtParamInvalid);
  EXPECT_EQ(aclrtStreamWaitEventWithTimeout(second_, other, -1), kRtParamInvalid);
}

TEST_F(EventTest, TimeNeedsATimeLineAndAReachedRecord) {
  float ms = -1;
  void* start = reusable(kEventTimeLine);
  void* end = reusable(kEventTimeLine | kEventSync);
  void* without = reusable();
  EXPECT_FAILS(aclrtEventElapsedTime(&ms, start, end), kRtParamInvalid, "the start event was never recorded");
  EXPECT_OK(aclrtRecordEvent(start, first_));
  Gate gate;
  gate.hold(first_);
  EXPECT_OK(aclrtRecordEvent(end, first_));
  EXPECT_OK(aclrtRecordEvent(without, first_));
  EXPECT_OK(aclrtSynchronizeEvent(start));
  EXPECT_FAILS(aclrtEventElapsedTime(&ms, start, end), kRtEventTimestampInvalid, "the end event has not been reached");
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  gate.open();
  EXPECT_OK(aclrtSynchronizeStream(first_));
  EXPECT_OK(aclrtEventElapsedTime(&ms, start, end));
  EXPECT_GE(ms, 3.0f);
  EXPECT_FAILS(aclrtEventElapsedTime(&ms, start, without), kRtEventTimestampInvalid, "without ACL_EVENT_TIME_LINE");
}

TEST_F(EventTest, FlagsAreChecked) {
  void* event = nullptr;
  EXPECT_FAILS(aclrtCreateEventExWithFlag(&event, 0x100), kRtParamInvalid, "0x100");
  EXPECT_EQ(aclrtCreateEventExWithFlag(&event, 0), kRtParamInvalid);
  EXPECT_EQ(aclrtCreateEventWithFlag(nullptr, kEventSync), kAclInvalidParam);
}

TEST_F(EventTest, ADestroyedEventIsRefusedAndItsWaitsGoOn) {
  void* event = nullptr;
  ASSERT_OK(aclrtCreateEventExWithFlag(&event, kEventSync));
  Gate gate;
  gate.hold(first_);
  EXPECT_OK(aclrtRecordEvent(event, first_));
  EXPECT_OK(aclrtStreamWaitEvent(second_, event));
  EXPECT_OK(aclrtDestroyEvent(event));
  EXPECT_FAILS(aclrtDestroyEvent(event), kRtInvalidHandle, "was destroyed");
  EXPECT_EQ(aclrtRecordEvent(event, first_), kRtInvalidHandle);
  EXPECT_EQ(aclrtStreamWaitEvent(first_, event), kRtInvalidHandle);
  EXPECT_EQ(aclrtDestroyEvent(nullptr), kAclInvalidParam);
  EXPECT_FALSE(stream_done(second_));
  gate.open();
  EXPECT_OK(aclrtSynchronizeStream(second_));
}

TEST_F(EventTest, ADeviceHasSoManyEventsAndNoMore) {
  for (int i = 0; i < kMaxEvents; ++i) flag();
  void* event = nullptr;
  EXPECT_FAILS(aclrtCreateEventWithFlag(&event, kEventSync), kRtNoEventResource, "65536 are in use");
  void* other = reusable();  // takes an id only when it is recorded
  EXPECT_EQ(aclrtRecordEvent(other, first_), kRtNoEventResource);
  EXPECT_OK(aclrtDestroyEvent(made_.front()));
  EXPECT_OK(aclrtRecordEvent(other, first_));
}

TEST_F(EventTest, AnEventTellsTheFailureOfItsStream) {
  ASSERT_OK(launch(first_, "aclnnBroken", []() -> int32_t { return kRtAicoreException; }));
  void* event = reusable();
  EXPECT_OK(aclrtRecordEvent(event, first_));
  EXPECT_EQ(aclrtSynchronizeEvent(event), kRtAicoreException);
}

}  // namespace
}  // namespace concord::ascend::sim::testing
