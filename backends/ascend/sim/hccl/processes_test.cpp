// Ranks as processes, as in a job. A separate program: ranks are forked, and the other program has threads.
#include <csignal>

#include "backends/ascend/sim/hccl/hccl.h"
#include "backends/ascend/sim/runtime/testing/sim_test.h"
#include "tests/processes/spawn.hpp"

namespace concord::ascend::sim::testing {
namespace {

// The root info comes from rank 0 to the others by a pipe, as a job's store would bring it.
class RootPipe {
 public:
  explicit RootPipe(int world) : world_(world) { EXPECT_EQ(::pipe(ends_), 0); }
  HcclRootInfo get(int rank) {
    HcclRootInfo root{};
    if (rank == 0) {
      EXPECT_EQ(HcclGetRootInfo(&root), kHcclSuccess);
      for (int i = 1; i < world_; ++i)
        EXPECT_EQ(::write(ends_[1], &root, sizeof root), static_cast<ssize_t>(sizeof root));
    } else {
      EXPECT_EQ(::read(ends_[0], &root, sizeof root), static_cast<ssize_t>(sizeof root));
    }
    return root;
  }

 private:
  const int world_;
  int ends_[2];
};

void start(int device) {
  ::setenv("HCCL_BUFFSIZE", "4", 1);
  ::setenv("HCCL_EXEC_TIMEOUT", "60", 1);
  ::aclInit(nullptr);
  ASSERT_OK(aclrtSetDevice(device));
}

TEST(HcclProcessesTest, RanksOfAJobSumTheirValues) {
  RootPipe pipe(3);
  tests::expect_ranks(3, [&](int rank) {
    start(rank);
    const HcclRootInfo root = pipe.get(rank);
    HcclComm comm = nullptr;
    ASSERT_EQ(HcclCommInitRootInfo(3, &root, static_cast<uint32_t>(rank), &comm), kHcclSuccess) << aclGetRecentErrMsg();
    TestStream stream;
    void* data = device_memory(64);
    write_word(data, rank + 1);
    EXPECT_EQ(HcclAllReduce(data, data, 1, kHcclInt32, kHcclSum, comm, stream), kHcclSuccess);
    EXPECT_OK(aclrtSynchronizeStream(stream));
    EXPECT_EQ(read_word(data), 6);
    EXPECT_EQ(HcclCommDestroy(comm), kHcclSuccess);
  });
}

TEST(HcclProcessesTest, TwoRanksOnOneDeviceAreRefusedAndVisibleDevicesCountByTheMachine) {
  for (const bool apart : {false, true}) {
    RootPipe pipe(2);
    tests::expect_ranks(2, [&](int rank) {
      // Both call their device 0; with the variable it is another one of the machine.
      if (apart) ::setenv("ASCEND_RT_VISIBLE_DEVICES", std::to_string(rank).c_str(), 1);
      start(0);
      const HcclRootInfo root = pipe.get(rank);
      HcclComm comm = nullptr;
      const HcclResult result = HcclCommInitRootInfo(2, &root, static_cast<uint32_t>(rank), &comm);
      EXPECT_EQ(result, apart ? kHcclSuccess : kHcclPara);
      if (!apart) {
        EXPECT_THAT(std::string(aclGetRecentErrMsg()), ::testing::HasSubstr("both on device 0"));
      }
    });
  }
}

TEST(HcclProcessesTest, ADeadPeerIsAnErrorLongBeforeTheTimeout) {
  RootPipe pipe(2);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  tests::Ranks ranks(2, [&](int rank) {
    start(rank);
    const HcclRootInfo root = pipe.get(rank);
    HcclComm comm = nullptr;
    ASSERT_EQ(HcclCommInitRootInfo(2, &root, static_cast<uint32_t>(rank), &comm), kHcclSuccess);
    char byte = 0;
    if (rank == 1) {
      EXPECT_EQ(::write(ready[1], &byte, 1), 1);
      ::pause();
    }
    TestStream stream;
    void* data = device_memory(64);
    EXPECT_EQ(HcclAllReduce(data, data, 1, kHcclInt32, kHcclSum, comm, stream), kHcclSuccess);
    EXPECT_NE(aclrtSynchronizeStream(stream), 0);
    HcclResult error = kHcclSuccess;
    EXPECT_EQ(HcclGetCommAsyncError(comm, &error), kHcclSuccess);
    EXPECT_EQ(error, kHcclRemote);
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ranks.signal(1, SIGKILL);
  const auto outcomes = ranks.wait(std::chrono::seconds(50));
  EXPECT_TRUE(outcomes[0].ok()) << outcomes[0].describe();
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
}

}  // namespace
}  // namespace concord::ascend::sim::testing
