#include "backends/ascend/sim/runtime/machine.h"
#include "backends/ascend/sim/runtime/testing/sim_test.h"

namespace concord::ascend::sim::testing {
namespace {

class DeviceTest : public SimTest {};

TEST_F(DeviceTest, TheEnvironmentSaysHowManyThereAre) {
  uint32_t count = 0;
  EXPECT_OK(aclrtGetDeviceCount(&count));
  EXPECT_EQ(count, static_cast<uint32_t>(kDevices));
  EXPECT_FAILS(aclrtSetDevice(kDevices), kRtInvalidDeviceId, "device 3 does not exist; there are 3");
  EXPECT_FAILS(aclrtSetDevice(-1), kRtInvalidDeviceId, "device -1 does not exist");
}

TEST_F(DeviceTest, AThreadHasNoneUntilItSetsOne) {
  on_fresh_thread([] {
    int32_t device = -1;
    void* out = nullptr;
    EXPECT_FAILS(aclrtGetDevice(&device), kRtContextNull, "this thread has no context");
    EXPECT_EQ(aclrtGetCurrentContext(&out), kRtContextNull);
    EXPECT_EQ(aclrtMalloc(&out, 64, kMallocHugeFirst), kRtContextNull);
    EXPECT_EQ(aclrtMallocHost(&out, 64), kRtContextNull);
    EXPECT_EQ(aclrtCreateStream(&out), kRtContextNull);
    EXPECT_EQ(aclrtCreateEventExWithFlag(&out, kEventSync), kRtContextNull);
    EXPECT_EQ(aclrtSynchronizeStream(nullptr), kRtContextNull);
    EXPECT_EQ(aclrtSynchronizeDevice(), kRtContextNull);
    EXPECT_OK(aclrtSetDevice(1));
    EXPECT_OK(aclrtGetDevice(&device));
    EXPECT_EQ(device, 1);
  });
  int32_t device = -1;
  EXPECT_OK(aclrtGetDevice(&device));
  EXPECT_EQ(device, 0);
}

TEST_F(DeviceTest, ThreadsShareTheDefaultContext) {
  void* mine = nullptr;
  ASSERT_OK(aclrtGetCurrentContext(&mine));
  on_fresh_thread([&] {
    void* theirs = nullptr;
    EXPECT_OK(aclrtSetDevice(0));
    EXPECT_OK(aclrtGetCurrentContext(&theirs));
    EXPECT_EQ(theirs, mine);
  });
}

TEST_F(DeviceTest, TheLastResetEndsTheContextAndFreesTheMemory) {
  ASSERT_OK(aclrtSetDevice(0));  // the second time
  void* memory = device_memory(1024);
  EXPECT_OK(aclrtResetDevice(0));
  write_word(memory, 5);
  EXPECT_EQ(read_word(memory), 5);
  EXPECT_OK(aclrtResetDevice(0));
  int32_t device = -1;
  EXPECT_FAILS(aclrtGetDevice(&device), kRtContextNull, "has ended");
  EXPECT_FAILS(aclrtResetDevice(0), kRtContextNull, "is not set");
  ASSERT_OK(aclrtSetDevice(0));
  EXPECT_FAILS(aclrtFree(memory), kRtParamInvalid, "was freed");
}

TEST_F(DeviceTest, AResetWaitsForTheWork) {
  TestStream stream;
  std::atomic<bool> done{false};
  ASSERT_OK(launch(stream, "slow", [&]() -> int32_t {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done.store(true);
    return 0;
  }));
  EXPECT_OK(aclrtResetDevice(0));
  EXPECT_TRUE(done.load());
  EXPECT_OK(aclrtSetDevice(0));
  EXPECT_FAILS(aclrtSynchronizeStream(stream), kRtInvalidHandle, "was destroyed");
}

TEST_F(DeviceTest, AnExplicitContextHasStreamsOfItsOwn) {
  void* usual = nullptr;
  void* own = nullptr;
  ASSERT_OK(aclrtGetCurrentContext(&usual));
  TestStream stream;
  ASSERT_OK(aclrtCreateContext(&own, 0));
  void* current = nullptr;
  EXPECT_OK(aclrtGetCurrentContext(&current));
  EXPECT_EQ(current, own);
  EXPECT_FAILS(aclrtSynchronizeStream(stream), kRtStreamContext, "belongs to another context of device 0");
  EXPECT_OK(aclrtSetCurrentContext(usual));
  EXPECT_OK(aclrtSynchronizeStream(stream));
  EXPECT_OK(aclrtDestroyContext(own));
  EXPECT_FAILS(aclrtSetCurrentContext(own), kRtInvalidHandle, "was destroyed");
  EXPECT_FAILS(aclrtDestroyContext(usual), kRtParamInvalid, "default context");
  EXPECT_EQ(aclrtDestroyContext(nullptr), kAclInvalidParam);
}

TEST_F(DeviceTest, AStreamOfAnotherDeviceIsRefused) {
  TestStream stream;
  void* event = nullptr;
  void* memory = device_memory(64);
  ASSERT_OK(aclrtCreateEventExWithFlag(&event, kEventSync));
  ASSERT_OK(aclrtSetDevice(1));
  TestStream other;
  aclrtStreamStatus status{};
  EXPECT_FAILS(aclrtSynchronizeStream(stream), kRtStreamContext,
               "of device 0; the current one is the default context of device 1");
  EXPECT_EQ(aclrtStreamQuery(stream, &status), kRtStreamContext);
  EXPECT_EQ(aclrtMemsetAsync(memory, 64, 0, 64, stream), kRtStreamContext);
  EXPECT_EQ(aclrtLaunchHostFunc(stream, [](void*) {}, nullptr), kRtStreamContext);
  EXPECT_EQ(launch(stream, "work", []() -> int32_t { return 0; }), kRtStreamContext);
  EXPECT_FAILS(aclrtRecordEvent(event, other), kRtStreamContext, "an event of device 0");
  EXPECT_EQ(aclrtDestroyStream(stream), kRtStreamContext);
  ASSERT_OK(aclrtSetDevice(0));
  EXPECT_OK(aclrtDestroyEvent(event));
}

TEST_F(DeviceTest, AStreamWaitsForAnEventOfAnotherDevice) {
  void* event = nullptr;
  TestStream here;
  Gate gate;
  ASSERT_OK(aclrtCreateEventExWithFlag(&event, kEventSync));
  gate.hold(here);
  ASSERT_OK(aclrtRecordEvent(event, here));
  ASSERT_OK(aclrtSetDevice(1));
  TestStream there;
  EXPECT_OK(aclrtStreamWaitEvent(there, event));
  EXPECT_FALSE(stream_done(there));
  gate.open();
  EXPECT_OK(aclrtSynchronizeStream(there));
  ASSERT_OK(aclrtDestroyEvent(event));
}

TEST_F(DeviceTest, CopiesBetweenDevicesNeedPeerAccess) {
  int32_t can = -1;
  EXPECT_OK(aclrtDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  EXPECT_OK(aclrtDeviceCanAccessPeer(&can, 0, 0));
  EXPECT_EQ(can, 0);
  void* from = device_memory(64);
  write_word(from, 7);
  ASSERT_OK(aclrtSetDevice(2));
  void* to = device_memory(64);
  EXPECT_FAILS(aclrtMemcpy(to, 64, from, 64, kMemcpyDeviceToDevice), kRtParamInvalid, "aclrtDeviceEnablePeerAccess");
  EXPECT_FAILS(aclrtDeviceEnablePeerAccess(0, 1), kRtFeatureNotSupport, "flags");
  EXPECT_FAILS(aclrtDeviceEnablePeerAccess(2, 0), kRtParamInvalid, "its own peer");
  EXPECT_EQ(aclrtDeviceEnablePeerAccess(9, 0), kRtInvalidDeviceId);
  EXPECT_OK(aclrtDeviceEnablePeerAccess(0, 0));
  EXPECT_OK(aclrtMemcpy(to, 64, from, 64, kMemcpyDeviceToDevice));
  EXPECT_EQ(read_word(to), 7);
  EXPECT_OK(aclrtDeviceDisablePeerAccess(0));
  EXPECT_EQ(aclrtMemcpy(to, 64, from, 64, kMemcpyDeviceToDevice), kRtParamInvalid);
}

TEST_F(DeviceTest, SynchronizeDeviceWaitsForEveryStreamOfIt) {
  TestStream first;
  TestStream second;
  Gate gate;
  void* memory = device_memory(64);
  gate.hold(first);
  queue_word(memory, 3, first);
  EXPECT_FAILS(aclrtSynchronizeDeviceWithTimeout(20), kRtStreamSyncTimeout, "within");
  gate.open();
  EXPECT_OK(aclrtSynchronizeDevice());
  EXPECT_EQ(read_word(memory), 3);
}

// The waiter may not wait yet when the first abort comes; so there are more of them until it has ended.
TEST_F(DeviceTest, TaskAbortEndsWaitersWithItsOwnCode) {
  TestStream stream;
  Gate gate;
  gate.hold(stream);
  gate.await();
  std::atomic<bool> ended{false};
  std::thread waiter([&] {
    EXPECT_OK(aclrtSetDevice(0));
    EXPECT_EQ(aclrtSynchronizeStream(stream), kRtDeviceTaskAbort);
    ended.store(true);
  });
  while (!ended.load()) {
    EXPECT_OK(aclrtDeviceTaskAbort(0, 100));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  waiter.join();
}

}  // namespace
}  // namespace concord::ascend::sim::testing
