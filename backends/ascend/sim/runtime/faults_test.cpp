#include "backends/ascend/sim/runtime/faults.h"

#include "backends/ascend/sim/runtime/testing/sim_test.h"

namespace concord::ascend::sim::testing {
namespace {

class FaultsTest : public SimTest {};

TEST_F(FaultsTest, TheNthCallFailsWithTheCodeThatWasAskedFor) {
  ASSERT_OK(concord_sim_set_faults("aclrtMalloc@2=207001;aclrtCreateStream@*=207008"));
  void* out = nullptr;
  EXPECT_OK(aclrtMalloc(&out, 64, kMallocHugeFirst));
  EXPECT_FAILS(aclrtMalloc(&out, 64, kMallocHugeFirst), kRtMemoryAllocation, "injected failure of call 2");
  EXPECT_OK(aclrtMalloc(&out, 64, kMallocHugeFirst));
  EXPECT_EQ(aclrtCreateStream(&out), kRtNoStreamResource);
  EXPECT_EQ(aclrtCreateStream(&out), kRtNoStreamResource);
  EXPECT_EQ(concord_sim_calls_of("aclrtMalloc"), 3);
  ASSERT_OK(concord_sim_set_faults(nullptr));
  EXPECT_OK(aclrtCreateStream(&out));
  EXPECT_OK(aclrtDestroyStream(out));
}

TEST_F(FaultsTest, WorkFailsOnItsStream) {
  TestStream stream;
  void* memory = device_memory(64);
  ASSERT_OK(concord_sim_set_faults("aclnnAdd@1=async:507015;aclrtMemsetAsync@1=async:507018"));
  bool ran = false;
  EXPECT_OK(launch(stream, "aclnnAdd", [&ran]() -> int32_t {
    ran = true;
    return 0;
  }));
  EXPECT_FAILS(aclrtSynchronizeStream(stream), kRtAicoreException, "injected failure of aclnnAdd on its stream");
  EXPECT_FALSE(ran);
  EXPECT_OK(aclrtMemsetAsync(memory, 64, 0, 64, stream));
  EXPECT_EQ(aclrtSynchronizeStream(stream), kRtAicpuException);
  EXPECT_OK(aclrtMemsetAsync(memory, 64, 0, 64, stream));
  EXPECT_OK(aclrtSynchronizeStream(stream));
}

TEST_F(FaultsTest, ADelayIsOfTheWorkNotOfTheCall) {
  TestStream stream;
  ASSERT_OK(concord_sim_set_faults("slow@1=delay:200ms"));
  EXPECT_OK(launch(stream, "slow", []() -> int32_t { return 0; }));
  EXPECT_FALSE(stream_done(stream));
  EXPECT_OK(aclrtSynchronizeStream(stream));
}

TEST_F(FaultsTest, RulesThatCannotBeReadAreRefused) {
  for (const char* rules :
       {"aclrtMalloc", "aclrtMalloc@2", "aclrtMalloc@0=5", "@1=5", "a@1=delay:5", "a@1=async:x", "a@b=5"}) {
    EXPECT_FAILS(concord_sim_set_faults(rules), kAclInvalidParam, "is invalid");
  }
}

}  // namespace
}  // namespace concord::ascend::sim::testing
