// Devices and threads: who initialises ACL, which device a thread has, and what is restored.
#include "backends/ascend/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "backends/ascend/testing/fake_cann.h"

namespace concord::ascend {
namespace {

using testing::fake;
using testing::fake_device;
using ::testing::HasSubstr;

class AscendDeviceTest : public ::testing::Test {
 protected:
  AscendDeviceTest() {
    fake() = {};
    fake_device = -1;
  }
  const Acl acl_ = testing::fake_acl();
};

template <class Call>
std::string failure_of(concord_status wanted, Call&& call) {
  try {
    call();
  } catch (const sdk::Failure& failure) {
    EXPECT_EQ(failure.status(), wanted) << failure.what();
    return failure.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST_F(AscendDeviceTest, AnInitialisationBySomebodyElseIsFine) {
  fake().answers["aclInit"] = abi::kAclRepeatInitialize;
  EXPECT_EQ(Devices(acl_).count(), 2);
}

TEST_F(AscendDeviceTest, AnyOtherFailureOfTheInitialisationMeansThatThereIsNoAscendHere) {
  for (const int code : {abi::kAclInternalError, abi::kRtNoDevice, 12345}) {
    fake().answers["aclInit"] = code;
    EXPECT_THAT(failure_of(CONCORD_STATUS_UNAVAILABLE, [&] { Devices devices(acl_); }),
                HasSubstr(sdk::text("aclInit failed with %d", code)));
  }
}

TEST_F(AscendDeviceTest, NoDeviceIsUnavailableAndSaysWhereToLook) {
  fake().devices = 0;
  EXPECT_THAT(failure_of(CONCORD_STATUS_UNAVAILABLE, [&] { Devices devices(acl_); }), HasSubstr("npu-smi"));
  fake().answers["aclrtGetDeviceCount"] = 507008;
  EXPECT_THAT(failure_of(CONCORD_STATUS_UNAVAILABLE, [&] { Devices devices(acl_); }), HasSubstr("507008"));
}

TEST_F(AscendDeviceTest, OpeningPutsNoContextOnAnyDevice) {
  Devices devices(acl_);
  EXPECT_EQ(devices.get_current(), 0);
  EXPECT_EQ(testing::calls_of("aclrtSetDevice"), 0);
}

TEST_F(AscendDeviceTest, AGuardPutsTheFormerDeviceBack) {
  Devices devices(acl_);
  devices.set_current(1);
  {
    const DeviceGuard here(devices, 0);
    EXPECT_EQ(fake_device, 0);
  }
  EXPECT_EQ(fake_device, 1);
}

TEST_F(AscendDeviceTest, AThreadWithoutADeviceGetsTheOneThatTheProcessUsedFirst) {
  Devices devices(acl_);
  devices.set_current(1);
  int32_t got = -1;
  std::thread([&] { got = devices.ensure_current(); }).join();
  EXPECT_EQ(got, 1);
}

TEST_F(AscendDeviceTest, AFailureToTellTheDeviceIsNotTakenForNone) {
  Devices devices(acl_);
  fake().answers["aclrtGetDevice"] = abi::kRtInternalError;
  failure_of(CONCORD_STATUS_VENDOR_ERROR, [&] { devices.get_current(); });
  failure_of(CONCORD_STATUS_VENDOR_ERROR, [&] { devices.ensure_current(); });
  failure_of(CONCORD_STATUS_VENDOR_ERROR, [&] { devices.set_current(0); });
}

TEST_F(AscendDeviceTest, PeerAccessIsEnabledOnceAndAgainWhereItFailed) {
  Devices devices(acl_);
  fake().answer_to_first["aclrtDeviceEnablePeerAccess"] = abi::kRtInternalError;
  failure_of(CONCORD_STATUS_VENDOR_ERROR, [&] { devices.enable_peer_access(0, 1); });
  devices.enable_peer_access(0, 1);
  devices.enable_peer_access(0, 1);
  devices.enable_peer_access(0, 0);
  EXPECT_EQ(testing::calls_of("aclrtDeviceEnablePeerAccess"), 2);
  devices.enable_peer_access(1, 0);
  EXPECT_EQ(testing::calls_of("aclrtDeviceEnablePeerAccess"), 3);
}

TEST_F(AscendDeviceTest, ANullStreamIsRefusedWithWhatToUseInstead) {
  Devices devices(acl_);
  EXPECT_THAT(failure_of(CONCORD_STATUS_INVALID_ARGUMENT, [&] { devices.device_of(nullptr); }),
              HasSubstr("stream.create"));
}

TEST_F(AscendDeviceTest, AStreamOfThePluginIsUsedOnItsOwnDeviceAndAnyOtherOnTheThreads) {
  Devices devices(acl_);
  devices.set_current(0);
  int mine = 0;
  int foreign = 0;
  const auto stream = reinterpret_cast<concord_stream>(&mine);
  devices.streams.add(stream, 1);
  EXPECT_EQ(devices.device_of(stream), 1);
  EXPECT_EQ(devices.device_of(reinterpret_cast<concord_stream>(&foreign)), 0);
}

}  // namespace
}  // namespace concord::ascend
