// Ranks are threads here, each with its own device; processes_test.cpp has processes.
#include "backends/ascend/sim/hccl/hccl.h"

#include <numeric>

#include "backends/ascend/sim/runtime/testing/sim_test.h"

namespace concord::ascend::sim::testing {
namespace {

constexpr uint32_t kWorld = 3;

#define EXPECT_HCCL(call) EXPECT_EQ((call), kHcclSuccess) << ::aclGetRecentErrMsg()
#define ASSERT_HCCL(call) ASSERT_EQ((call), kHcclSuccess) << ::aclGetRecentErrMsg()

// One rank of a test: its thread's device, a stream and the world's communicator.
struct Self {
  uint32_t rank;
  HcclComm comm;
  void* stream;

  void* filled(const std::vector<float>& values) const {
    void* memory = device_memory(values.size() * sizeof(float));
    const size_t bytes = values.size() * sizeof(float);
    EXPECT_OK(aclrtMemcpy(memory, bytes, values.data(), bytes, kMemcpyHostToDevice));
    return memory;
  }
  void* filled(size_t count, float value) const { return filled(std::vector<float>(count, value)); }
  void wait() const { EXPECT_OK(aclrtSynchronizeStream(stream)); }
};

class HcclTest : public SimTest {
 protected:
  HcclTest() {
    ::setenv("HCCL_BUFFSIZE", "4", 1);
    ::setenv("HCCL_EXEC_TIMEOUT", "60", 1);
    ::setenv("HCCL_CONNECT_TIMEOUT", "60", 1);
  }

  static HcclRootInfo root_info() {
    HcclRootInfo root{};
    EXPECT_HCCL(HcclGetRootInfo(&root));
    return root;
  }

  template <class Body>
  static void in_threads(Body&& body) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      threads.emplace_back([&body, rank] {
        EXPECT_OK(aclrtSetDevice(static_cast<int32_t>(rank)));
        body(rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  template <class Body>
  static void in_ranks(Body&& body) {
    const HcclRootInfo root = root_info();
    in_threads([&](uint32_t rank) {
      Self self{rank, nullptr, nullptr};
      ASSERT_HCCL(HcclCommInitRootInfo(kWorld, &root, rank, &self.comm));
      ASSERT_OK(aclrtCreateStream(&self.stream));
      body(self);
      aclrtSynchronizeStream(self.stream);
      EXPECT_HCCL(HcclCommDestroy(self.comm));
      EXPECT_OK(aclrtDestroyStream(self.stream));
    });
  }
};

HcclCommConfig default_config() {
  HcclCommConfig config{};
  config.size = kHcclConfigBytes;
  config.magic = kHcclConfigMagic;
  config.version = kHcclConfigVersion;
  config.hcclBufferSize = kHcclConfigNotSet;
  config.hcclDeterministic = kHcclConfigNotSet;
  return config;
}

using Floats = std::vector<float>;

// --------------------------------------------------------------------------------------------------------- collectives

TEST_F(HcclTest, CollectivesGiveTheirValues) {
  in_ranks([](const Self& self) {
    const auto own = static_cast<float>(self.rank);
    void* in = self.filled({own, own + 10, own + 20});
    void* out = self.filled(9, -1);
    EXPECT_HCCL(HcclAllReduce(in, out, 3, kHcclFp32, kHcclSum, self.comm, self.stream));
    self.wait();
    EXPECT_EQ(read_back<float>(out, 3), (Floats{3, 33, 63}));
    EXPECT_HCCL(HcclAllReduce(in, out, 3, kHcclFp32, kHcclProd, self.comm, self.stream));
    self.wait();
    EXPECT_EQ(read_back<float>(out, 3), (Floats{0, 10 * 11 * 12, 20 * 21 * 22}));
    EXPECT_HCCL(HcclAllReduce(in, in, 3, kHcclFp32, kHcclMax, self.comm, self.stream));
    self.wait();
    EXPECT_EQ(read_back<float>(in, 3), (Floats{2, 12, 22}));

    void* gathered = self.filled({own});
    EXPECT_HCCL(HcclAllGather(gathered, out, 1, kHcclFp32, self.comm, self.stream));
    self.wait();
    EXPECT_EQ(read_back<float>(out, 3), (Floats{0, 1, 2}));

    void* parts = self.filled({own, own + 1, own + 2});
    EXPECT_HCCL(HcclReduceScatter(parts, out, 1, kHcclFp32, kHcclSum, self.comm, self.stream));
    self.wait();
    EXPECT_EQ(read_back<float>(out, 1)[0], 3 + 3 * own);

    EXPECT_HCCL(HcclBroadcast(gathered, 1, kHcclFp32, 2, self.comm, self.stream));
    self.wait();
    EXPECT_EQ(read_back<float>(gathered, 1)[0], 2);

    EXPECT_HCCL(HcclReduce(parts, out, 3, kHcclFp32, kHcclMin, 1, self.comm, self.stream));
    self.wait();
    if (self.rank == 1) {
      EXPECT_EQ(read_back<float>(out, 3), (Floats{0, 1, 2}));
    }

    EXPECT_HCCL(HcclAlltoAll(parts, 1, kHcclFp32, out, 1, kHcclFp32, self.comm, self.stream));
    self.wait();
    EXPECT_EQ(read_back<float>(out, 3), (Floats{own, own + 1, own + 2}));

    void* whole = self.filled({7, 8, 9});
    EXPECT_HCCL(HcclScatter(whole, out, 1, kHcclFp32, 0, self.comm, self.stream));
    EXPECT_HCCL(HcclBarrier(self.comm, self.stream));
    self.wait();
    EXPECT_EQ(read_back<float>(out, 1)[0], 7 + own);
  });
}

// The ranks are threads of one process, so their work adds up.
TEST_F(HcclTest, TheBytesOfBuffersAreCounted) {
  const auto work_of = [](const char* name) {
    std::vector<int64_t> work(3);
    work[0] = concord_sim_work_of(name, &work[1], &work[2]);
    return work;
  };
  const std::vector<int64_t> gathers = work_of("HcclAllGather"), broadcasts = work_of("HcclBroadcast");
  in_ranks([](const Self& self) {
    void *one = self.filled(1, 1), *all = self.filled(kWorld, 1);
    EXPECT_HCCL(HcclAllGather(one, all, 1, kHcclFp32, self.comm, self.stream));
    EXPECT_HCCL(HcclBroadcast(all, kWorld, kHcclFp32, 0, self.comm, self.stream));
    self.wait();
  });
  using ::testing::ElementsAre;
  EXPECT_THAT(work_of("HcclAllGather"), ElementsAre(gathers[0] + 3, gathers[1] + 3 * 4, gathers[2] + 3 * 12));
  EXPECT_THAT(work_of("HcclBroadcast"), ElementsAre(broadcasts[0] + 3, broadcasts[1] + 12, broadcasts[2] + 2 * 12));
}

TEST_F(HcclTest, UnevenCollectivesGiveTheirValues) {
  in_ranks([](const Self& self) {
    // Rank r sends r + 1 elements to each, all of value r.
    const auto own = static_cast<float>(self.rank);
    const uint64_t mine = self.rank + 1;
    void* in = self.filled(3 * mine, own);
    void* out = self.filled(6, -1);
    const std::vector<uint64_t> sent(kWorld, mine);
    const std::vector<uint64_t> sent_at{0, mine, 2 * mine};
    const std::vector<uint64_t> received{1, 2, 3};
    const std::vector<uint64_t> received_at{0, 1, 3};
    EXPECT_HCCL(HcclAlltoAllV(in, sent.data(), sent_at.data(), kHcclFp32, out, received.data(), received_at.data(),
                              kHcclFp32, self.comm, self.stream));
    self.wait();
    EXPECT_EQ(read_back<float>(out, 6), (Floats{0, 1, 1, 2, 2, 2}));

    const std::vector<uint64_t> matrix{1, 1, 1, 2, 2, 2, 3, 3, 3};
    out = self.filled(6, -1);
    EXPECT_HCCL(HcclAlltoAllVC(in, matrix.data(), kHcclFp32, out, kHcclFp32, self.comm, self.stream));
    self.wait();
    EXPECT_EQ(read_back<float>(out, 6), (Floats{0, 1, 1, 2, 2, 2}));

    out = self.filled(6, -1);
    EXPECT_HCCL(HcclAllGatherV(in, mine, out, received.data(), received_at.data(), kHcclFp32, self.comm, self.stream));
    self.wait();
    EXPECT_EQ(read_back<float>(out, 6), (Floats{0, 1, 1, 2, 2, 2}));

    void* summed = self.filled(Floats{1, 2, 3, 4, 5, 6});
    EXPECT_HCCL(HcclReduceScatterV(summed, received.data(), received_at.data(), out, mine, kHcclFp32, kHcclSum,
                                   self.comm, self.stream));
    self.wait();
    const std::vector<Floats> expected{{3}, {6, 9}, {12, 15, 18}};
    EXPECT_EQ(read_back<float>(out, mine), expected[self.rank]);
  });
}

TEST_F(HcclTest, WorkIsOrderedByItsStream) {
  in_ranks([](const Self& self) {
    Gate gate;
    void* value = self.filled({1});
    gate.hold(self.stream);
    EXPECT_HCCL(HcclAllReduce(value, value, 1, kHcclFp32, kHcclSum, self.comm, self.stream));
    EXPECT_HCCL(HcclAllReduce(value, value, 1, kHcclFp32, kHcclSum, self.comm, self.stream));
    EXPECT_FALSE(stream_done(self.stream));
    gate.open();
    self.wait();
    EXPECT_EQ(read_back<float>(value, 1)[0], 9);
  });
}

TEST_F(HcclTest, TypesAndReductionsAreTheHardwares) {
  in_ranks([](const Self& self) {
    void* data = self.filled(4, 0);
    const auto reduce = [&](HcclDataType type, HcclReduceOp op) {
      const HcclResult result = HcclAllReduce(data, data, 1, type, op, self.comm, self.stream);
      self.wait();
      return result;
    };
    for (const HcclDataType type : {kHcclInt8, kHcclInt16, kHcclInt32, kHcclInt64, kHcclFp16, kHcclFp32, kHcclBfp16}) {
      EXPECT_EQ(reduce(type, kHcclSum), kHcclSuccess) << type;
      const bool no_product = type == kHcclInt16 || type == kHcclBfp16;
      EXPECT_EQ(reduce(type, kHcclProd), no_product ? kHcclNotSupport : kHcclSuccess) << type;
    }
    for (const HcclDataType type : {kHcclUint8, kHcclUint16, kHcclUint32, kHcclUint64, kHcclFp64, kHcclInt128}) {
      EXPECT_EQ(reduce(type, kHcclSum), kHcclNotSupport) << type;
      EXPECT_HCCL(HcclBroadcast(data, 1, type, 0, self.comm, self.stream));
      self.wait();
    }
    EXPECT_EQ(reduce(static_cast<HcclDataType>(99), kHcclSum), kHcclPara);
    EXPECT_EQ(reduce(kHcclFp32, static_cast<HcclReduceOp>(4)), kHcclPara) << "there is no average";
  });
}

TEST_F(HcclTest, ArgumentsAreChecked) {
  in_ranks([](const Self& self) {
    void* data = self.filled(4, 0);
    float host[4] = {};
    const auto reduce = [&](void* from, void* to, uint64_t count, void* stream) {
      return HcclAllReduce(from, to, count, kHcclFp32, kHcclSum, self.comm, stream);
    };
    EXPECT_EQ(reduce(data, data, 1, nullptr), kHcclPtr);
    EXPECT_EQ(HcclBarrier(self.comm, nullptr), kHcclPtr);
    EXPECT_EQ(reduce(nullptr, data, 1, self.stream), kHcclPtr);
    EXPECT_EQ(reduce(host, data, 1, self.stream), kHcclPara);
    EXPECT_THAT(std::string(aclGetRecentErrMsg()), ::testing::HasSubstr("not a device address"));
    EXPECT_EQ(reduce(data, data, 5, self.stream), kHcclPara);
    EXPECT_EQ(reduce(static_cast<char*>(data) + 1, data, 1, self.stream), kHcclPara);
    EXPECT_EQ(reduce(data, data, 1, &host), kHcclPara) << "no stream";
    EXPECT_EQ(HcclAllReduce(data, data, 1, kHcclFp32, kHcclSum, nullptr, self.stream), kHcclPtr);
    EXPECT_EQ(HcclAllReduce(data, data, 1, kHcclFp32, kHcclSum, &host, self.stream), kHcclPara);
    EXPECT_EQ(HcclBroadcast(data, 1, kHcclFp32, kWorld, self.comm, self.stream), kHcclPara);
    EXPECT_EQ(HcclSend(data, 1, kHcclFp32, self.rank, self.comm, self.stream), kHcclNotSupport);
    EXPECT_EQ(HcclRecv(data, 1, kHcclFp32, self.rank, self.comm, self.stream), kHcclNotSupport);
    EXPECT_HCCL(reduce(data, data, 0, self.stream));
    EXPECT_HCCL(reduce(nullptr, nullptr, 0, self.stream));
    EXPECT_HCCL(HcclSend(nullptr, 0, kHcclFp32, (self.rank + 1) % kWorld, self.comm, self.stream));
    self.wait();
  });
}

// --------------------------------------------------------------------------------------------------- between two ranks

TEST_F(HcclTest, ASendEndsWithItsReceive) {
  std::atomic<bool> received{false};
  in_ranks([&](const Self& self) {
    void* data = self.filled({static_cast<float>(self.rank)});
    if (self.rank == 0) {
      EXPECT_HCCL(HcclSend(data, 1, kHcclFp32, 1, self.comm, self.stream));
      EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(self.stream, 50), kRtStreamSyncTimeout) << "nobody has received yet";
      received.store(true);
      self.wait();
    } else if (self.rank == 1) {
      while (!received.load()) std::this_thread::yield();
      EXPECT_HCCL(HcclRecv(data, 1, kHcclFp32, 0, self.comm, self.stream));
      self.wait();
      EXPECT_EQ(read_back<float>(data, 1)[0], 0);
    }
  });
}

TEST_F(HcclTest, ABatchExchangesInAnyOrder) {
  in_ranks([](const Self& self) {
    const uint32_t next = (self.rank + 1) % kWorld;
    const uint32_t previous = (self.rank + kWorld - 1) % kWorld;
    void* out = self.filled(100000, static_cast<float>(self.rank));
    void* in = self.filled(100000, -1);
    HcclSendRecvItem items[] = {{kHcclSend, out, 100000, kHcclFp32, next},
                                {kHcclRecv, in, 100000, kHcclFp32, previous}};
    if (self.rank == 1) std::swap(items[0], items[1]);
    EXPECT_HCCL(HcclBatchSendRecv(items, 2, self.comm, self.stream));
    self.wait();
    EXPECT_EQ(read_back<float>(in, 100000), Floats(100000, static_cast<float>(previous)));
    HcclSendRecvItem to_self = {kHcclSend, out, 1, kHcclFp32, self.rank};
    EXPECT_EQ(HcclBatchSendRecv(&to_self, 1, self.comm, self.stream), kHcclNotSupport);
    EXPECT_EQ(HcclBatchSendRecv(items, 0, self.comm, self.stream), kHcclPara);
  });
}

// Both send first: each send waits for a receive that comes after the other's send.
TEST_F(HcclTest, SendsInOppositeOrderWaitForEachOtherUntilTheTimeout) {
  ::setenv("HCCL_EXEC_TIMEOUT", "1", 1);
  in_ranks([](const Self& self) {
    if (self.rank == 2) return;
    const uint32_t peer = 1 - self.rank;
    void* out = self.filled({static_cast<float>(self.rank)});
    void* in = self.filled({-1});
    EXPECT_HCCL(HcclSend(out, 1, kHcclFp32, peer, self.comm, self.stream));
    HcclRecv(in, 1, kHcclFp32, peer, self.comm, self.stream);
    EXPECT_NE(aclrtSynchronizeStream(self.stream), 0);
    HcclResult error = kHcclSuccess;
    EXPECT_HCCL(HcclGetCommAsyncError(self.comm, &error));
    EXPECT_NE(error, kHcclSuccess);
  });
}

// ------------------------------------------------------------------------------------------------------------ failures

TEST_F(HcclTest, ASilentPeerIsATimeout) {
  ::setenv("HCCL_EXEC_TIMEOUT", "1", 1);
  in_ranks([](const Self& self) {
    if (self.rank == 2) return;
    void* data = self.filled({1});
    HcclResult error = kHcclTimeout;
    EXPECT_HCCL(HcclGetCommAsyncError(self.comm, &error));
    EXPECT_EQ(error, kHcclSuccess);
    EXPECT_HCCL(HcclAllReduce(data, data, 1, kHcclFp32, kHcclSum, self.comm, self.stream));
    EXPECT_NE(aclrtSynchronizeStream(self.stream), 0);
    EXPECT_HCCL(HcclGetCommAsyncError(self.comm, &error));
    EXPECT_NE(error, kHcclSuccess);
    EXPECT_STREQ(HcclGetErrorString(kHcclTimeout), "timeout");
  });
}

TEST_F(HcclTest, AnAbortedStreamEndsItsOperation) {
  in_ranks([](const Self& self) {
    if (self.rank != 0) return;
    void* data = self.filled({1});
    EXPECT_HCCL(HcclAllReduce(data, data, 1, kHcclFp32, kHcclSum, self.comm, self.stream));
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(self.stream, 20), kRtStreamSyncTimeout);
    EXPECT_OK(aclrtStreamAbort(self.stream));
    EXPECT_OK(aclrtSynchronizeStream(self.stream));
  });
}

TEST_F(HcclTest, MemoryFreedBeforeTheOperationRunsIsAFailure) {
  in_ranks([](const Self& self) {
    Gate gate;
    void* data = self.filled({1});
    gate.hold(self.stream);
    EXPECT_HCCL(HcclAllReduce(data, data, 1, kHcclFp32, kHcclSum, self.comm, self.stream));
    EXPECT_OK(aclrtFree(data));
    gate.open();
    EXPECT_NE(aclrtSynchronizeStream(self.stream), 0);
  });
}

TEST_F(HcclTest, InjectedFailuresComeFromTheCallOrTheStream) {
  in_ranks([](const Self& self) {
    if (self.rank != 0) return;
    void* data = self.filled({1});
    EXPECT_OK(concord_sim_set_faults("HcclBarrier@1=7;HcclAllReduce@*=async:507015"));
    EXPECT_EQ(HcclBarrier(self.comm, self.stream), kHcclUnavail);
    EXPECT_HCCL(HcclAllReduce(data, data, 1, kHcclFp32, kHcclSum, self.comm, self.stream));
    EXPECT_EQ(aclrtSynchronizeStream(self.stream), kRtAicoreException);
  });
}

// ------------------------------------------------------------------------------------------------------- communicators

TEST_F(HcclTest, ACommunicatorTakesTwiceItsBufferFromTheDevice) {
  size_t free_before = 0;
  size_t total = 0;
  ASSERT_OK(aclrtGetMemInfo(kHbmMem, &free_before, &total));
  const HcclRootInfo root = root_info();
  HcclCommConfig config = default_config();
  HcclComm comm = nullptr;
  ASSERT_HCCL(HcclCommInitRootInfoConfig(1, &root, 0, &config, &comm));
  size_t free = 0;
  ASSERT_OK(aclrtGetMemInfo(kHbmMem, &free, &total));
  EXPECT_EQ(free_before - free, size_t{8} << 20);
  EXPECT_HCCL(HcclCommDestroy(comm));
  ASSERT_OK(aclrtGetMemInfo(kHbmMem, &free, &total));
  EXPECT_EQ(free, free_before);
  config.hcclBufferSize = 33;  // twice that is more than 64 MiB
  EXPECT_EQ(HcclCommInitRootInfoConfig(1, &root, 0, &config, &comm), kHcclOom);
  config.magic = 0;
  EXPECT_EQ(HcclCommInitRootInfoConfig(1, &root, 0, &config, &comm), kHcclPara);
}

TEST_F(HcclTest, SetUpIsChecked) {
  HcclComm comm = nullptr;
  HcclRootInfo root = root_info();
  EXPECT_EQ(HcclGetRootInfo(nullptr), kHcclPtr);
  EXPECT_EQ(HcclCommInitRootInfo(2, nullptr, 0, &comm), kHcclPtr);
  EXPECT_EQ(HcclCommInitRootInfo(2, &root, 2, &comm), kHcclPara);
  EXPECT_EQ(HcclCommInitRootInfo(0, &root, 0, &comm), kHcclPara);
  root.internal[0] ^= 1;
  EXPECT_EQ(HcclCommInitRootInfo(1, &root, 0, &comm), kHcclPara);
  on_fresh_thread([] {
    HcclRootInfo mine{};
    EXPECT_EQ(HcclGetRootInfo(&mine), kHcclRuntime) << "no device";
  });
  EXPECT_EQ(HcclCommDestroy(nullptr), kHcclPtr);
  EXPECT_EQ(HcclCommDestroy(&root), kHcclPara);
}

TEST_F(HcclTest, OneDeviceSetsUpOneCommunicatorAtATime) {
  const HcclRootInfo root = root_info();
  std::atomic<int> refused{0};
  // Both are rank 0 of a world that is never complete; one of them comes second.
  ::setenv("HCCL_CONNECT_TIMEOUT", "1", 1);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      EXPECT_OK(aclrtSetDevice(0));
      HcclComm comm = nullptr;
      if (HcclCommInitRootInfo(2, &root, 0, &comm) == kHcclUnavail) ++refused;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused.load(), 1);
}

TEST_F(HcclTest, ACommunicatorTellsAboutItself) {
  in_ranks([](const Self& self) {
    uint32_t value = 99;
    char name[128] = {};
    EXPECT_HCCL(HcclGetRankSize(self.comm, &value));
    EXPECT_EQ(value, kWorld);
    EXPECT_HCCL(HcclGetRankId(self.comm, &value));
    EXPECT_EQ(value, self.rank);
    EXPECT_HCCL(HcclGetCommName(self.comm, name));
    EXPECT_THAT(std::string(name), ::testing::StartsWith("sim-hccl-"));
    EXPECT_HCCL(HcclCommSuspend(self.comm));
    EXPECT_EQ(HcclBarrier(self.comm, self.stream), kHcclSuspending);
    EXPECT_HCCL(HcclCommResume(self.comm));
    EXPECT_HCCL(HcclBarrier(self.comm, self.stream));
    self.wait();
  });
}

TEST_F(HcclTest, DestroyingACommunicatorInUseIsToBeTriedAgain) {
  in_ranks([](const Self& self) {
    Gate gate;
    gate.hold(self.stream);
    EXPECT_HCCL(HcclBarrier(self.comm, self.stream));
    EXPECT_EQ(HcclCommDestroy(self.comm), kHcclAgain);
    gate.open();
    self.wait();
  });
}

TEST_F(HcclTest, SubCommunicatorsAreCutFromTheWorld) {
  in_ranks([](const Self& self) {
    HcclCommConfig config = default_config();
    HcclComm comm = self.comm;
    HcclComm sub = nullptr;
    uint32_t members[] = {0, 2};
    if (self.rank == 1) {
      EXPECT_HCCL(HcclCreateSubCommConfig(&comm, 0, nullptr, kHcclNoSubComm, 0, &config, &sub));
      EXPECT_EQ(sub, nullptr);
      return;
    }
    ASSERT_HCCL(HcclCreateSubCommConfig(&comm, 2, members, 5, self.rank / 2, &config, &sub));
    void* data = self.filled({static_cast<float>(self.rank + 1)});
    EXPECT_HCCL(HcclAllReduce(data, data, 1, kHcclFp32, kHcclSum, sub, self.stream));
    self.wait();
    EXPECT_EQ(read_back<float>(data, 1)[0], 4);
    HcclComm deeper = nullptr;
    uint32_t one[] = {self.rank / 2};
    EXPECT_EQ(HcclCreateSubCommConfig(&sub, 1, one, 6, 0, &config, &deeper), kHcclNotSupport);
    uint32_t descending[] = {2, 0};
    EXPECT_EQ(HcclCreateSubCommConfig(&comm, 2, descending, 7, 0, &config, &deeper), kHcclPara);
    EXPECT_EQ(HcclCreateSubCommConfig(&comm, 2, members, 8, 1 - self.rank / 2, &config, &deeper), kHcclPara);
    EXPECT_HCCL(HcclCommDestroy(sub));
  });
}

TEST_F(HcclTest, TheSameBitsInEveryRunAndOnEveryRank) {
  std::vector<Floats> results(2 * kWorld);
  for (size_t round = 0; round < 2; ++round) {
    in_ranks([&](const Self& self) {
      Floats values(5000);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = 1.0f / static_cast<float>(1 + (i * 7919 + self.rank * 104729) % 10007);
      }
      void* data = self.filled(values);
      EXPECT_HCCL(HcclAllReduce(data, data, values.size(), kHcclFp32, kHcclSum, self.comm, self.stream));
      self.wait();
      results[round * kWorld + self.rank] = read_back<float>(data, values.size());
    });
  }
  for (const Floats& result : results) EXPECT_EQ(result, results.front());
}

}  // namespace
}  // namespace concord::ascend::sim::testing
