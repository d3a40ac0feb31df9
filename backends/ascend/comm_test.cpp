// The calls of the comm table to HCCL, and how it handles HCCL's answers. Conformance tests the results.
#include "backends/ascend/comm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "backends/ascend/testing/fake_cann.h"

namespace concord::ascend {
namespace {

using testing::calls_of;
using ::testing::ElementsAre;
using testing::fake;
using ::testing::HasSubstr;

class AscendCommTest : public ::testing::Test {
 protected:
  AscendCommTest() {
    fake() = {};
    testing::fake_device = 0;
  }

  concord_comm join(int32_t world = 4, int32_t rank = 1) {
    const abi::HcclRootInfo root{};
    return comms_.init(0, world, rank, &root, sizeof root, nullptr);
  }
  concord_status all_reduce(concord_comm comm, std::string* out_words = nullptr) {
    try {
      comms_.all_reduce(comm, data_, data_, 4, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, stream_);
      return CONCORD_STATUS_OK;
    } catch (const sdk::Failure& failure) {
      if (out_words != nullptr) *out_words = failure.what();
      return failure.status();
    }
  }

  const Acl acl_ = testing::fake_acl();
  const Hccl hccl_ = testing::fake_hccl();
  Devices devices_{acl_};
  Memory memory_{devices_};
  const Averages averages_{devices_};
  Communicators comms_{devices_, memory_, hccl_, averages_};
  float data_[8] = {};
  int a_stream_ = 0;
  concord_stream stream_ = reinterpret_cast<concord_stream>(&a_stream_);
};

TEST_F(AscendCommTest, ASingleRankTakesNoMemoryOfHccl) {
  const concord_comm comm = join(1, 0);
  EXPECT_EQ(all_reduce(comm), CONCORD_STATUS_OK);
  comms_.barrier(comm, stream_);
  comms_.destroy(comm);
  for (const char* call : {"HcclCommInitRootInfo", "HcclAllReduce", "HcclCommDestroy"}) EXPECT_EQ(calls_of(call), 0);
}

TEST_F(AscendCommTest, ARefusalLeavesTheCommunicatorWell) {
  const concord_comm comm = join();
  for (const int code : {abi::kHcclPara, abi::kHcclPtr}) {
    fake().answers["HcclAllReduce"] = code;
    EXPECT_EQ(all_reduce(comm), CONCORD_STATUS_INVALID_ARGUMENT);
  }
  fake().answers["HcclAllReduce"] = abi::kHcclNotSupport;
  EXPECT_EQ(all_reduce(comm), CONCORD_STATUS_UNIMPLEMENTED);
  fake().answers.clear();
  EXPECT_EQ(all_reduce(comm), CONCORD_STATUS_OK);
  comms_.destroy(comm);
}

TEST_F(AscendCommTest, AFailureSticksWithItsCodeAndSentence) {
  const concord_comm comm = join();
  fake().answers["HcclAllReduce"] = abi::kHcclTimeout;
  EXPECT_EQ(all_reduce(comm), CONCORD_STATUS_TIMEOUT);
  fake().answers.clear();
  std::string words;
  EXPECT_EQ(all_reduce(comm, &words), CONCORD_STATUS_TIMEOUT);
  EXPECT_THAT(words, HasSubstr("rank 1 of 4: HcclAllReduce failed with 9, HCCL_E_TIMEOUT"));
  EXPECT_EQ(comms_.async_error(comm), CONCORD_STATUS_TIMEOUT);
  EXPECT_EQ(calls_of("HcclAllReduce"), 1);
  comms_.destroy(comm);
}

TEST_F(AscendCommTest, AnUnknownResultIsAFailure) {
  const concord_comm comm = join();
  fake().answers["HcclAllReduce"] = 77;
  EXPECT_EQ(all_reduce(comm), CONCORD_STATUS_VENDOR_ERROR);
  comms_.destroy(comm);
}

TEST_F(AscendCommTest, WhatHcclFindsLaterIsTheStreamsErrorAndThatOfLaterCalls) {
  const concord_comm comm = join();
  EXPECT_EQ(all_reduce(comm), CONCORD_STATUS_OK);
  comms_.report(stream_, "no communicator has failed");
  fake().async_error = abi::kHcclRemote;
  int another = 0;
  comms_.report(reinterpret_cast<concord_stream>(&another), "it was never used here");
  try {
    comms_.report(stream_, "what the stream said");
    ADD_FAILURE() << "the failure was not told";
  } catch (const sdk::Failure& failure) {
    EXPECT_EQ(failure.status(), CONCORD_STATUS_PEER_LOST);
    EXPECT_THAT(failure.what(), HasSubstr("what the stream said"));
  }
  EXPECT_EQ(all_reduce(comm), CONCORD_STATUS_PEER_LOST);
  EXPECT_EQ(comms_.async_error(comm), CONCORD_STATUS_PEER_LOST);
  comms_.destroy(comm);
}

TEST_F(AscendCommTest, DestroyTriesAgainWhileHcclIsBusy) {
  const concord_comm comm = join();
  fake().answer_to_first["HcclCommDestroy"] = abi::kHcclAgain;
  comms_.destroy(comm);
  EXPECT_EQ(calls_of("HcclCommDestroy"), 2);
}

TEST_F(AscendCommTest, ACommunicatorIsDestroyedOnce) {
  const concord_comm comm = join();
  comms_.destroy(comm);
  EXPECT_THROW(comms_.destroy(comm), sdk::Failure);
  EXPECT_THROW(comms_.destroy(nullptr), sdk::Failure);
  EXPECT_EQ(calls_of("HcclCommDestroy"), 1);
}

TEST_F(AscendCommTest, SendsToOneselfAreCopiedAndTheRestIsOneBatch) {
  const concord_comm comm = join();
  data_[0] = 42;
  const concord_p2p_item items[] = {{CONCORD_P2P_SEND, 1, &data_[0], 1, CONCORD_DTYPE_F32, 0},
                                    {CONCORD_P2P_RECV, 3, &data_[2], 1, CONCORD_DTYPE_F32, 0},
                                    {CONCORD_P2P_SEND, 0, &data_[3], 2, CONCORD_DTYPE_F32, 0},
                                    {CONCORD_P2P_SEND, 2, &data_[3], 0, CONCORD_DTYPE_F32, 0},
                                    {CONCORD_P2P_RECV, 1, &data_[1], 1, CONCORD_DTYPE_F32, 0}};
  comms_.batch_p2p(comm, items, std::size(items), stream_);
  EXPECT_EQ(data_[1], 42);
  ASSERT_EQ(fake().items.size(), 2u);
  EXPECT_EQ(fake().items[0].sendRecvType, abi::kHcclRecv);
  EXPECT_EQ(fake().items[0].remoteRank, 3u);
  EXPECT_EQ(fake().items[1].count, 8u);  // bytes
  comms_.destroy(comm);
}

TEST_F(AscendCommTest, ASplitOfASplitIsCutFromTheFirstCommunicator) {
  const concord_comm first = join(8, 5);
  const int32_t odd[] = {1, 3, 5, 7};
  const concord_comm half = comms_.split(first, odd, 4, nullptr);
  EXPECT_THAT(fake().sub_ranks, ElementsAre(1, 3, 5, 7));
  EXPECT_EQ(comms_.rank(half), 2);
  const int32_t end[] = {2, 3};
  const concord_comm quarter = comms_.split(half, end, 2, nullptr);
  EXPECT_THAT(fake().sub_ranks, ElementsAre(5, 7));
  EXPECT_EQ(calls_of("HcclCommInitRootInfo"), 1);
  const concord_comm again = comms_.split(half, end, 2, nullptr);
  EXPECT_EQ(std::set<uint64_t>(fake().sub_ids.begin(), fake().sub_ids.end()).size(), 3u);  // HCCL wants them distinct
  for (const concord_comm comm : {first, half, quarter, again}) comms_.destroy(comm);
  EXPECT_EQ(calls_of("HcclCommDestroy"), 4);
}

TEST_F(AscendCommTest, RanksInAnotherOrderMeetAnew) {
  const concord_comm first = join(4, 1);
  const int32_t ranks[] = {3, 1};
  const concord_comm swapped = comms_.split(first, ranks, 2, nullptr);
  EXPECT_THAT(fake().sub_ids, ElementsAre(abi::kHcclNoSubComm));
  EXPECT_EQ(calls_of("HcclCommInitRootInfo"), 2);
  ASSERT_EQ(fake().items.size(), 1u);  // the root info comes from the first of them
  EXPECT_EQ(fake().items[0].sendRecvType, abi::kHcclRecv);
  EXPECT_EQ(fake().items[0].remoteRank, 3u);
  comms_.destroy(swapped);
  comms_.destroy(first);
}

TEST_F(AscendCommTest, EveryRankOfTheParentCallsHcclAlsoOneThatIsNoMember) {
  const concord_comm first = join(4, 1);
  EXPECT_EQ(comms_.split(first, nullptr, 0, nullptr), nullptr);
  EXPECT_THAT(fake().sub_ids, ElementsAre(0xffffffff));
  EXPECT_THAT(fake().sub_ranks, ::testing::IsEmpty());
  const int32_t myself[] = {1};
  const concord_comm alone = comms_.split(first, myself, 1, nullptr);  // made without HCCL
  EXPECT_THAT(fake().sub_ids, ElementsAre(0xffffffff, 0xffffffff));
  fake().answers["HcclCreateSubCommConfig"] = abi::kHcclTimeout;
  EXPECT_THROW(comms_.split(first, nullptr, 0, nullptr), sdk::Failure);
  comms_.destroy(alone);
  comms_.destroy(first);
}

TEST_F(AscendCommTest, TheTimeoutOfTheJobIsPassedOnUnlessHcclHasOneOfItsOwn) {
  const auto passed = [](const char* seconds) {
    pass_timeouts(seconds);
    const char* const connect = ::getenv("HCCL_CONNECT_TIMEOUT");
    const char* const execute = ::getenv("HCCL_EXEC_TIMEOUT");
    return std::string(connect != nullptr ? connect : "none") + " " + (execute != nullptr ? execute : "none");
  };
  const auto forget = [] {
    ::unsetenv("HCCL_CONNECT_TIMEOUT");
    ::unsetenv("HCCL_EXEC_TIMEOUT");
  };
  forget();
  EXPECT_EQ(passed(nullptr), "none none");
  EXPECT_EQ(passed("300"), "300 300");
  EXPECT_EQ(passed("400"), "300 300");
  forget();
  EXPECT_EQ(passed("5"), "120 5");  // the least that HCCL takes
  forget();
  EXPECT_EQ(passed("86400"), "7200 86400");
  forget();
  EXPECT_THROW(pass_timeouts("soon"), sdk::Failure);
  EXPECT_THROW(pass_timeouts("0"), sdk::Failure);
}

TEST_F(AscendCommTest, AParentStaysUntilItsLastChildIsDestroyed) {
  const concord_comm first = join(4, 1);
  const int32_t ranks[] = {0, 1};
  const concord_comm child = comms_.split(first, ranks, 2, nullptr);
  comms_.destroy(first);
  EXPECT_EQ(calls_of("HcclCommDestroy"), 0);
  comms_.destroy(child);
  EXPECT_EQ(calls_of("HcclCommDestroy"), 2);
}

TEST_F(AscendCommTest, WhatHcclDoesNotReduceIsDeclaredAndRefused) {
  const concord_comm comm = join();
  const auto supported = [&](concord_dtype dtype, concord_reduce_op reduce) {
    return comms_.supports(CONCORD_COMM_ALL_REDUCE, dtype, reduce) == 1;
  };
  EXPECT_TRUE(supported(CONCORD_DTYPE_BF16, CONCORD_REDUCE_SUM));
  EXPECT_FALSE(supported(CONCORD_DTYPE_BF16, CONCORD_REDUCE_PROD));
  EXPECT_FALSE(supported(CONCORD_DTYPE_I16, CONCORD_REDUCE_PROD));
  EXPECT_FALSE(supported(CONCORD_DTYPE_F64, CONCORD_REDUCE_SUM));
  EXPECT_FALSE(supported(CONCORD_DTYPE_U8, CONCORD_REDUCE_SUM));
  EXPECT_TRUE(supported(CONCORD_DTYPE_BOOL, CONCORD_REDUCE_SUM));
  EXPECT_FALSE(supported(CONCORD_DTYPE_BOOL, CONCORD_REDUCE_AVG));
  EXPECT_FALSE(supported(CONCORD_DTYPE_I32, CONCORD_REDUCE_AVG));
  EXPECT_THROW(comms_.all_reduce(comm, data_, data_, 1, CONCORD_DTYPE_F64, CONCORD_REDUCE_SUM, stream_), sdk::Failure);
  EXPECT_EQ(calls_of("HcclAllReduce"), 0);
  comms_.destroy(comm);
}

TEST_F(AscendCommTest, AnotherStreamWaitsForTheOneBefore) {
  const concord_comm comm = join();
  int another = 0;
  const concord_stream second = reinterpret_cast<concord_stream>(&another);
  const auto reduce_on = [&](concord_stream stream) {
    fake().calls.clear();
    comms_.all_reduce(comm, data_, data_, 4, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, stream);
    std::erase(fake().calls, "aclrtGetDevice");
    return fake().calls;
  };
  EXPECT_THAT(reduce_on(stream_), ElementsAre("HcclAllReduce"));
  EXPECT_THAT(reduce_on(stream_), ElementsAre("HcclAllReduce"));
  EXPECT_THAT(reduce_on(second),
              ElementsAre("aclrtCreateEventExWithFlag", "aclrtRecordEvent", "aclrtStreamWaitEvent", "HcclAllReduce"));
  EXPECT_THAT(reduce_on(stream_), ElementsAre("aclrtRecordEvent", "aclrtStreamWaitEvent", "HcclAllReduce"));
  comms_.forget(stream_);
  EXPECT_THAT(reduce_on(second), ElementsAre("HcclAllReduce"));
  comms_.destroy(comm);
}

TEST_F(AscendCommTest, AStreamOfAnotherDeviceIsRefused) {
  const concord_comm comm = join();
  devices_.streams.add(stream_, 1);
  EXPECT_EQ(all_reduce(comm), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(calls_of("HcclAllReduce"), 0);
  comms_.destroy(comm);
}

}  // namespace
}  // namespace concord::ascend
