// The comm table on the fake CUDA and NCCL: values, and every way in which something can fail to arrive.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>

#include "backends/cuda/fake/control.h"
#include "backends/cuda/testing/fake_host.h"

namespace concord::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kLong = 60'000;  // ends a hang, decides nothing

const concord_comm_table& comm() { return fake_host().comm(); }
const std::string& detail() { return sdk::TestHost::detail(); }

template <class T>
std::vector<T> all_reduced(Rank& mine, std::vector<T> values, concord_dtype dtype, concord_reduce_op reduce) {
  DeviceArray<T> buffer(values);
  EXPECT_TRUE(ok(comm().all_reduce(comm().self, mine.comm, buffer.data(), buffer.data(),
                                   static_cast<int64_t>(values.size()), dtype, reduce, mine.stream)));
  EXPECT_TRUE(ok(mine.synchronize()));
  return buffer.values();
}

// ------------------------------------------------------------------------------------------------------------- values

TEST(CudaComm, ReductionsMeanWhatTheContractSays) {
  run_ranks(3, kLong, [](Rank& mine) {
    const auto r = static_cast<int16_t>(mine.rank);
    using Bytes = std::vector<uint8_t>;
    using Shorts = std::vector<int16_t>;
    const auto bit = [&](bool on) { return static_cast<uint8_t>(on); };
    EXPECT_THAT(all_reduced<float>(mine, {1.5f * r}, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM), ElementsAre(4.5f));
    EXPECT_THAT(all_reduced(mine, Bytes{bit(r == 1), 0}, CONCORD_DTYPE_BOOL, CONCORD_REDUCE_SUM), ElementsAre(1, 0));
    EXPECT_THAT(all_reduced(mine, Bytes{bit(r != 1), 1}, CONCORD_DTYPE_BOOL, CONCORD_REDUCE_PROD), ElementsAre(0, 1));
    const auto big = static_cast<int16_t>(20000 + r);
    EXPECT_THAT(all_reduced(mine, Shorts{big}, CONCORD_DTYPE_I16, CONCORD_REDUCE_SUM),
                ElementsAre(static_cast<int16_t>(60003 - 65536)));
    EXPECT_THAT(all_reduced(mine, Shorts{big}, CONCORD_DTYPE_I16, CONCORD_REDUCE_AVG), ElementsAre(20001));
    EXPECT_THAT(all_reduced(mine, Shorts{big}, CONCORD_DTYPE_I16, CONCORD_REDUCE_MIN), ElementsAre(20000));
  });
}

TEST(CudaComm, MinAndMaxOfFloatsTakeNanFromAnyRank) {
  run_ranks(2, kLong, [](Rank& mine) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const bool first = mine.rank == 0;
    for (const concord_reduce_op op : {CONCORD_REDUCE_MIN, CONCORD_REDUCE_MAX}) {
      const auto got = all_reduced<float>(mine, {first ? nan : 1.0f, first ? -2.0f : 3.0f}, CONCORD_DTYPE_F32, op);
      EXPECT_TRUE(std::isnan(got[0]));
      EXPECT_EQ(got[1], op == CONCORD_REDUCE_MIN ? -2.0f : 3.0f);
    }
  });
}

TEST(CudaComm, StagedReduceAndReduceScatterWriteOnlyTheirResult) {
  run_ranks(2, kLong, [](Rank& mine) {
    DeviceArray<double> send(mine.rank == 0 ? std::vector<double>{1, 5, -3, 0.5} : std::vector<double>{2, 4, -4, 0.25});
    DeviceArray<double> piece({-1, -1});
    ASSERT_TRUE(ok(comm().reduce_scatter(comm().self, mine.comm, send.data(), piece.data(), 2, CONCORD_DTYPE_F64,
                                         CONCORD_REDUCE_MAX, mine.stream)));
    DeviceArray<double> whole({-1, -1, -1, -1});
    void* result = mine.rank == 1 ? whole.data() : nullptr;
    ASSERT_TRUE(ok(comm().reduce(comm().self, mine.comm, send.data(), result, 4, CONCORD_DTYPE_F64, CONCORD_REDUCE_MIN,
                                 1, mine.stream)));
    ASSERT_TRUE(ok(mine.synchronize()));
    if (mine.rank == 0) {
      EXPECT_THAT(piece.values(), ElementsAre(2, 5));
    }
    if (mine.rank == 1) {
      EXPECT_THAT(piece.values(), ElementsAre(-3, 0.5));
    }
    if (mine.rank == 0) {
      EXPECT_THAT(whole.values(), ElementsAre(-1, -1, -1, -1));
    }
    if (mine.rank == 1) {
      EXPECT_THAT(whole.values(), ElementsAre(1, 4, -4, 0.25));
    }
  });
}

TEST(CudaComm, DataMovementCarriesTypesThatNcclDoesNotHave) {
  run_ranks(2, kLong, [](Rank& mine) {
    const auto base = static_cast<int16_t>(100 * mine.rank);
    DeviceArray<int16_t> send({static_cast<int16_t>(base + 1), static_cast<int16_t>(base + 2)});
    DeviceArray<int16_t> gathered(std::vector<int16_t>(4));
    DeviceArray<int16_t> exchanged(std::vector<int16_t>(2));
    DeviceArray<int16_t> told({-1, -1});
    ASSERT_TRUE(
        ok(comm().all_gather(comm().self, mine.comm, send.data(), gathered.data(), 2, CONCORD_DTYPE_I16, mine.stream)));
    ASSERT_TRUE(ok(
        comm().all_to_all(comm().self, mine.comm, send.data(), exchanged.data(), 1, CONCORD_DTYPE_I16, mine.stream)));
    const void* source = mine.rank == 1 ? send.data() : nullptr;
    ASSERT_TRUE(
        ok(comm().broadcast(comm().self, mine.comm, source, told.data(), 2, CONCORD_DTYPE_I16, 1, mine.stream)));
    ASSERT_TRUE(ok(comm().barrier(comm().self, mine.comm, mine.stream)));
    ASSERT_TRUE(ok(mine.synchronize()));
    EXPECT_THAT(gathered.values(), ElementsAre(1, 2, 101, 102));
    EXPECT_THAT(told.values(), ElementsAre(101, 102));
    if (mine.rank == 0) {
      EXPECT_THAT(exchanged.values(), ElementsAre(1, 101));
    }
    if (mine.rank == 1) {
      EXPECT_THAT(exchanged.values(), ElementsAre(2, 102));
    }
  });
}

TEST(CudaComm, UnevenExchangesAndBatchesOfTransfersArrive) {
  run_ranks(2, kLong, [](Rank& mine) {
    const bool first = mine.rank == 0;
    DeviceArray<int32_t> send({mine.rank * 10, mine.rank * 10 + 1, mine.rank * 10 + 2});
    DeviceArray<int32_t> recv({-1, -1, -1});
    const int64_t send_counts[] = {first ? 1 : 2, first ? 2 : 0};
    const int64_t send_offsets[] = {0, 1};
    const int64_t recv_counts[] = {first ? 1 : 2, first ? 2 : 0};
    const int64_t recv_offsets[] = {0, first ? 1 : 0};
    ASSERT_TRUE(ok(comm().all_to_all_v(comm().self, mine.comm, send.data(), send_counts, send_offsets, recv.data(),
                                       recv_counts, recv_offsets, CONCORD_DTYPE_I32, mine.stream)));
    DeviceArray<int32_t> got({-1, -1});
    const int32_t peer = 1 - mine.rank;
    const concord_p2p_item items[] = {
        {CONCORD_P2P_SEND, peer, send.data(), 1, CONCORD_DTYPE_I32, 0},
        {CONCORD_P2P_RECV, peer, got.data(), 1, CONCORD_DTYPE_I32, 0},
        {CONCORD_P2P_SEND, mine.rank, send.data() + 2, 1, CONCORD_DTYPE_I32, 0},
        {CONCORD_P2P_RECV, mine.rank, got.data() + 1, 1, CONCORD_DTYPE_I32, 0},
    };
    ASSERT_TRUE(ok(comm().batch_p2p(comm().self, mine.comm, items, 4, mine.stream)));
    ASSERT_TRUE(ok(mine.synchronize()));
    if (first) {
      EXPECT_THAT(recv.values(), ElementsAre(0, 10, 11));
    }
    if (!first) {
      EXPECT_THAT(recv.values(), ElementsAre(1, 2, -1));
    }
    EXPECT_THAT(got.values(), ElementsAre(peer * 10, mine.rank * 10 + 2));
  });
}

TEST(CudaComm, ASplitHasTheOrderOfItsListAndNonMembersGetNull) {
  run_ranks(3, kLong, [](Rank& mine) {
    const int32_t list[] = {2, 0};
    const bool member = mine.rank != 1;
    Rank child = mine;
    ASSERT_TRUE(ok(comm().split(comm().self, mine.comm, list, member ? 2 : 0, nullptr, &child.comm)));
    EXPECT_EQ(child.comm != nullptr, member);
    if (!member) return;
    int32_t rank = -1;
    ASSERT_TRUE(ok(comm().rank(comm().self, child.comm, &rank)));
    EXPECT_EQ(rank, mine.rank == 2 ? 0 : 1);
    EXPECT_THAT(all_reduced<int32_t>(child, {mine.rank + 1}, CONCORD_DTYPE_I32, CONCORD_REDUCE_SUM), ElementsAre(4));
    EXPECT_TRUE(ok(comm().destroy(comm().self, child.comm)));
  });
}

TEST(CudaComm, ArgumentsThatMakeNoSenseAreRefusedAndHarmNothing) {
  run_ranks(1, kLong, [](Rank& mine) {
    DeviceArray<float> buffer({1, 2});
    float* data = buffer.data();
    const auto reduce = [&](const void* send, int64_t count, concord_dtype dtype, concord_reduce_op op) {
      return comm().all_reduce(comm().self, mine.comm, send, data, count, dtype, op, mine.stream);
    };
    EXPECT_EQ(reduce(data, -1, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM), CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(reduce(data, 1, 99, CONCORD_REDUCE_SUM), CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(reduce(nullptr, 1, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM), CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(reduce(data, 1, CONCORD_DTYPE_BOOL, CONCORD_REDUCE_AVG), CONCORD_STATUS_UNIMPLEMENTED);
    EXPECT_EQ(comm().barrier(comm().self, nullptr, mine.stream), CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_TRUE(ok(reduce(nullptr, 0, CONCORD_DTYPE_F32, CONCORD_REDUCE_AVG)));
    EXPECT_TRUE(ok(reduce(data, 2, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM)));
    EXPECT_TRUE(ok(mine.synchronize()));
  });
}

// ----------------------------------------------------------------------------------------------------------- failures

concord_status queue_barrier(Rank& mine) { return comm().barrier(comm().self, mine.comm, mine.stream); }

// An operation that also a communicator of one rank does by way of NCCL.
concord_status queue_transfer(Rank& mine) {
  static const auto& buffer = *new DeviceArray<int32_t>({1, 2});  // never released: the plugin may be unloaded by then
  const concord_p2p_item items[] = {{CONCORD_P2P_SEND, mine.rank, buffer.data(), 1, CONCORD_DTYPE_I32, 0},
                                    {CONCORD_P2P_RECV, mine.rank, buffer.data() + 1, 1, CONCORD_DTYPE_I32, 0}};
  return comm().batch_p2p(comm().self, mine.comm, items, 2, mine.stream);
}

TEST(CudaComm, ARankThatNeverJoinsIsATimeout) {
  std::vector<char> id(128);
  ASSERT_TRUE(ok(comm().unique_id_create(comm().self, id.data(), 128)));
  concord_comm_config config{sizeof config, 0, "lonely", 300};
  concord_comm made = nullptr;
  EXPECT_EQ(comm().init(comm().self, 0, 2, 0, id.data(), 128, &config, &made), CONCORD_STATUS_TIMEOUT);
  EXPECT_EQ(made, nullptr);
  EXPECT_THAT(detail(), HasSubstr("communicator 'lonely', rank 0 of 2: not all ranks reached "
                                  "ncclCommInitRankConfig in time"));
}

TEST(CudaComm, ASilentPeerIsATimeoutOfTheStreamAndOfEveryLaterCall) {
  std::atomic<bool> seen{false};
  run_ranks(2, 400, [&](Rank& mine) {
    if (mine.rank == 1) {
      while (!seen) std::this_thread::yield();
      return;
    }
    ASSERT_TRUE(ok(queue_barrier(mine)));
    EXPECT_EQ(mine.synchronize(), CONCORD_STATUS_TIMEOUT);
    EXPECT_THAT(detail(), HasSubstr("rank 0 of 2: an operation made no progress for 400 ms"));
    EXPECT_TRUE(ok(mine.synchronize())) << "the stream tells it once";
    EXPECT_EQ(queue_barrier(mine), CONCORD_STATUS_TIMEOUT);
    concord_status error = CONCORD_STATUS_OK;
    ASSERT_TRUE(ok(comm().async_error(comm().self, mine.comm, &error)));
    EXPECT_EQ(error, CONCORD_STATUS_TIMEOUT);
    seen = true;
  });
}

TEST(CudaComm, AnAbortEndsTheOwnRankWithAbortedAndThePeerWithPeerLost) {
  run_ranks(2, kLong, [](Rank& mine) {
    ASSERT_TRUE(ok(queue_barrier(mine)));
    ASSERT_TRUE(ok(mine.synchronize()));
    if (mine.rank == 1) {
      ASSERT_TRUE(ok(comm().abort(comm().self, mine.comm)));
      EXPECT_EQ(queue_barrier(mine), CONCORD_STATUS_ABORTED);
      EXPECT_EQ(mine.synchronize(), CONCORD_STATUS_ABORTED);
      return;
    }
    ASSERT_TRUE(ok(queue_barrier(mine)));
    EXPECT_EQ(mine.synchronize(), CONCORD_STATUS_PEER_LOST);
    EXPECT_THAT(detail(), HasSubstr("ncclRemoteError"));
    EXPECT_THAT(detail(), HasSubstr("NCCL's last error: "));
  });
}

TEST(CudaComm, AnotherThreadsAbortFreesAWaitingStream) {
  std::atomic<bool> done{false};
  run_ranks(2, kLong, [&](Rank& mine) {
    if (mine.rank == 1) {
      while (!done) std::this_thread::yield();
      return;
    }
    ASSERT_TRUE(ok(queue_barrier(mine)));
    std::thread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_TRUE(ok(comm().abort(comm().self, mine.comm)));
    });
    EXPECT_EQ(mine.synchronize(), CONCORD_STATUS_ABORTED);
    aborter.join();
    done = true;
  });
}

TEST(CudaComm, ACallThatIsHeldInsideNcclEndsWithATimeoutAndIsNotFreedUnderItsThread) {
  const auto hold = fake_control<void(int)>("fake_nccl_hold_calls");
  const auto under = fake_control<int()>("fake_nccl_aborts_under_a_caller");
  run_ranks(1, 300, [&](Rank& mine) {
    hold(1);
    EXPECT_EQ(queue_transfer(mine), CONCORD_STATUS_TIMEOUT);
    hold(0);
  });
  EXPECT_EQ(under(), 0);
}

TEST(CudaComm, AResultThatNobodyKnowsBreaksTheCommunicatorAndIsToldByNumber) {
  const auto fail_next = fake_control<void(int)>("fake_nccl_fail_next_call");
  run_ranks(1, kLong, [&](Rank& mine) {
    fail_next(42);
    EXPECT_EQ(queue_transfer(mine), CONCORD_STATUS_VENDOR_ERROR);
    EXPECT_THAT(detail(), HasSubstr("ncclGroupEnd (batch_p2p) failed with 42, a code unknown to this plugin"));
    EXPECT_THAT(detail(), HasSubstr("NCCL's last error: the test asked for this"));
    EXPECT_EQ(queue_transfer(mine), CONCORD_STATUS_VENDOR_ERROR);
  });
}

TEST(CudaComm, AnArgumentThatNcclRefusesDoesNotBreakTheCommunicator) {
  const auto fail_next = fake_control<void(int)>("fake_nccl_fail_next_call");
  run_ranks(1, kLong, [&](Rank& mine) {
    fail_next(4);
    EXPECT_EQ(queue_transfer(mine), CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_TRUE(ok(queue_transfer(mine)));
    EXPECT_TRUE(ok(mine.synchronize()));
  });
}

TEST(CudaComm, AnErrorOfNcclsThreadsComesOutOfAsyncError) {
  const auto set_async = fake_control<void(int)>("fake_nccl_set_async_error");
  run_ranks(1, kLong, [&](Rank& mine) {
    set_async(2);
    concord_status error = CONCORD_STATUS_OK;
    ASSERT_TRUE(ok(comm().async_error(comm().self, mine.comm, &error)));
    EXPECT_EQ(error, CONCORD_STATUS_VENDOR_ERROR);
    EXPECT_THAT(detail(), HasSubstr("ncclSystemError"));
  });
}

TEST(CudaComm, ADestroyThatNcclHoldsUpReturnsAndIsFinishedLater) {
  const auto hold = fake_control<void(int)>("fake_nccl_hold_destroy");
  const auto live = fake_control<int()>("fake_nccl_live");
  const int before = live();
  run_ranks(1, kLong, [&](Rank&) { hold(1); });
  EXPECT_EQ(live(), before + 1);
  hold(0);
  while (live() != before) std::this_thread::yield();
}

TEST(CudaComm, ManyLivesLeaveNothingInNccl) {
  const auto live = fake_control<int()>("fake_nccl_live");
  const int before = live();
  for (int i = 0; i < 50; ++i) {
    run_ranks(2, kLong, [](Rank& mine) { EXPECT_TRUE(ok(queue_barrier(mine))); });
  }
  EXPECT_EQ(live(), before);
}

TEST(CudaComm, ASecondDestroyIsRefused) {
  concord_comm dead = nullptr;
  run_ranks(1, kLong, [&](Rank& mine) { dead = mine.comm; });
  EXPECT_EQ(comm().destroy(comm().self, dead), CONCORD_STATUS_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace concord::cuda
