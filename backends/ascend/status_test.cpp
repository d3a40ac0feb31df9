// Result codes: every one has a meaning, and none that is unknown passes for success.
#include "backends/ascend/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/ascend/testing/fake_cann.h"

namespace concord::ascend {
namespace {

using ::testing::HasSubstr;

TEST(AscendStatusTest, KnownCodesOfTheRuntimeHaveAMeaning) {
  EXPECT_EQ(status_of(abi::kAclSuccess), CONCORD_STATUS_OK);
  EXPECT_EQ(status_of(abi::kRtMemoryAllocation), CONCORD_STATUS_OUT_OF_MEMORY);
  EXPECT_EQ(status_of(abi::kRtDeviceOom), CONCORD_STATUS_OUT_OF_MEMORY);
  EXPECT_EQ(status_of(abi::kRtInvalidDeviceId), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(status_of(abi::kRtStreamSyncTimeout), CONCORD_STATUS_TIMEOUT);
  EXPECT_EQ(status_of(abi::kRtStreamAbort), CONCORD_STATUS_ABORTED);
  EXPECT_EQ(status_of(abi::kRtNoDevice), CONCORD_STATUS_UNAVAILABLE);
  EXPECT_EQ(status_of(abi::kRtFeatureNotSupport), CONCORD_STATUS_UNIMPLEMENTED);
  EXPECT_EQ(status_of(abi::kRtContextNull), CONCORD_STATUS_INTERNAL);
}

TEST(AscendStatusTest, UnknownCodesAreErrors) {
  for (const abi::aclError code : {1, -1, 100099, 107099, 207099, 507899, 999999}) {
    EXPECT_EQ(status_of(code), CONCORD_STATUS_VENDOR_ERROR) << code;
  }
  for (const uint32_t code : {4u, 7u + 18u, 25u, 255u, 0xffffffffu}) {
    EXPECT_EQ(status_of(static_cast<abi::HcclResult>(code)), CONCORD_STATUS_VENDOR_ERROR) << code;
  }
}

TEST(AscendStatusTest, CodesOfHcclHaveAMeaning) {
  EXPECT_EQ(status_of(abi::kHcclSuccess), CONCORD_STATUS_OK);
  EXPECT_EQ(status_of(abi::kHcclPtr), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(status_of(abi::kHcclNotSupport), CONCORD_STATUS_UNIMPLEMENTED);
  EXPECT_EQ(status_of(abi::kHcclTimeout), CONCORD_STATUS_TIMEOUT);
  EXPECT_EQ(status_of(abi::kHcclRemote), CONCORD_STATUS_PEER_LOST);
  EXPECT_EQ(status_of(abi::kHcclOom), CONCORD_STATUS_OUT_OF_MEMORY);
}

TEST(AscendStatusTest, ASentenceHasTheCallTheCodeItsNameAndTheVendorsWordsOnOneLine) {
  const Acl acl = testing::fake_acl();
  EXPECT_EQ(describe(acl, abi::kRtMemoryAllocation, "aclrtMalloc"),
            "aclrtMalloc failed with 207001, ACL_ERROR_RT_MEMORY_ALLOCATION: the vendor's own words");
  EXPECT_THAT(describe(acl, 4711, "aclrtMalloc"), HasSubstr("4711, a code unknown to this plugin"));
  const Hccl hccl = testing::fake_hccl();
  EXPECT_EQ(describe(hccl, abi::kHcclOom, "HcclAllReduce"),
            "HcclAllReduce failed with 24, HCCL_E_OOM: HCCL's own words");
  EXPECT_THAT(describe(hccl, static_cast<abi::HcclResult>(99), "HcclAllReduce"), HasSubstr("99, a code unknown"));
}

}  // namespace
}  // namespace concord::ascend
