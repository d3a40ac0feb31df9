// The communicators, with threads of this process as ranks. What the engine computes is tested next to it; here is what
// the plugin adds: queues, turns, failures, handles, and that every slot reaches its operation.
#include <array>
#include <functional>
#include <numeric>
#include <vector>

#include "backends/cpu/testing/harness.h"

namespace concord::cpu::testing {
namespace {

constexpr concord_dtype kF32 = CONCORD_DTYPE_F32;
constexpr concord_reduce_op kSum = CONCORD_REDUCE_SUM;
using Id = std::array<char, 128>;

Id new_id() {
  Id id{};
  EXPECT_OK(CALL(comm, unique_id_create, id.data(), 128));
  return id;
}

concord_comm join(int32_t world, int32_t rank, const Id& id, int64_t timeout_ms = 60000, int32_t on = 0) {
  concord_comm_config config{sizeof config, 0, "test", timeout_ms};
  concord_comm handle = nullptr;
  EXPECT_OK(CALL(comm, init, on, world, rank, id.data(), 128, &config, &handle));
  return handle;
}

// Runs |body|(rank, communicator) on a thread per rank, and destroys the communicators.
void with_ranks(int32_t world, const std::function<void(int32_t, concord_comm)>& body, int64_t timeout_ms = 60000) {
  const Id id = new_id();
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      concord_comm handle = join(world, rank, id, timeout_ms);
      if (handle == nullptr) return;
      body(rank, handle);
      EXPECT_OK(CALL(comm, destroy, handle));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

concord_status all_reduce(concord_comm handle, std::vector<float>& values, concord_stream on) {
  return CALL(comm, all_reduce, handle, values.data(), values.data(), static_cast<int64_t>(values.size()), kF32, kSum,
              on);
}

concord_status error_of(concord_comm handle) {
  concord_status status = -1;
  EXPECT_OK(CALL(comm, async_error, handle, &status));
  return status;
}

TEST(Comm, RankAndSizeAreThoseOfInit) {
  with_ranks(3, [](int32_t rank, concord_comm handle) {
    int32_t answer = -1;
    EXPECT_OK(CALL(comm, rank, handle, &answer));
    EXPECT_EQ(answer, rank);
    EXPECT_OK(CALL(comm, size, handle, &answer));
    EXPECT_EQ(answer, 3);
    EXPECT_EQ(error_of(handle), CONCORD_STATUS_OK);
  });
}

TEST(Comm, EveryOperationRunsOnAStreamAndInline) {
  with_ranks(2, [](int32_t rank, concord_comm handle) {
    const TestStream own;
    const float mine = static_cast<float>(rank + 1);
    for (concord_stream s : {static_cast<concord_stream>(own), concord_stream{}}) {
      std::vector<float> send = {mine, 10 * mine}, recv(4, -1);
      const auto expect = [&](std::vector<float> expected) {
        ASSERT_OK(CALL(stream, synchronize, s));
        EXPECT_EQ(recv, expected);
        recv.assign(4, -1);
      };
      EXPECT_OK(CALL(comm, all_reduce, handle, send.data(), recv.data(), 2, kF32, kSum, s));
      expect({3, 30, -1, -1});
      EXPECT_OK(CALL(comm, reduce, handle, send.data(), recv.data(), 2, kF32, CONCORD_REDUCE_MAX, 1, s));
      expect(rank == 1 ? std::vector<float>{2, 20, -1, -1} : std::vector<float>(4, -1));
      EXPECT_OK(CALL(comm, broadcast, handle, rank == 1 ? send.data() : nullptr, recv.data(), 2, kF32, 1, s));
      expect({2, 20, -1, -1});
      EXPECT_OK(CALL(comm, all_gather, handle, send.data(), recv.data(), 2, kF32, s));
      expect({1, 10, 2, 20});
      EXPECT_OK(CALL(comm, reduce_scatter, handle, send.data(), recv.data(), 1, kF32, kSum, s));
      expect({rank == 0 ? 3.0f : 30.0f, -1, -1, -1});
      EXPECT_OK(CALL(comm, all_to_all, handle, send.data(), recv.data(), 1, kF32, s));
      expect(rank == 0 ? std::vector<float>{1, 2, -1, -1} : std::vector<float>{10, 20, -1, -1});
      EXPECT_OK(CALL(comm, barrier, handle, s));
      expect({-1, -1, -1, -1});
    }
  });
}

TEST(Comm, ArraysOfACallMayGoWhenItReturns) {
  with_ranks(2, [](int32_t rank, concord_comm handle) {
    const TestStream s;
    Gate gate;
    gate.block(s);
    const float mine = static_cast<float>(rank + 1);
    std::vector<float> send = {mine, 10 * mine}, recv(4, -1), moved(1, -1);
    {  // one element to the other rank, from place 1 to place 2; nothing to oneself
      std::vector<int64_t> counts(2, 0), from(2, 1), to(2, 2);
      counts[static_cast<size_t>(1 - rank)] = 1;
      EXPECT_OK(CALL(comm, all_to_all_v, handle, send.data(), counts.data(), from.data(), recv.data(), counts.data(),
                     to.data(), kF32, s));
      std::fill(counts.begin(), counts.end(), 99);
      std::vector<concord_p2p_item> items = {{CONCORD_P2P_RECV, 1 - rank, moved.data(), 1, kF32, 0},
                                             {CONCORD_P2P_SEND, 1 - rank, send.data(), 1, kF32, 0}};
      EXPECT_OK(CALL(comm, batch_p2p, handle, items.data(), 2, s));
      items.assign(2, {});
    }
    gate.open();
    EXPECT_OK(s.synchronize());
    EXPECT_EQ(recv, (std::vector<float>{-1, -1, rank == 0 ? 20.0f : 10.0f, -1}));
    EXPECT_EQ(moved[0], rank == 0 ? 2.0f : 1.0f);
  });
}

TEST(Comm, AnOperationWaitsForTheWorkQueuedBeforeItOnItsStream) {
  with_ranks(2, [](int32_t rank, concord_comm handle) {
    const TestStream s;
    std::vector<float> values = {0};
    struct Set {
      float* where;
      float value;
    } set{values.data(), static_cast<float>(rank + 5)};
    Gate slow;
    if (rank == 1) slow.block(s);
    const auto store = [](void* user) { *static_cast<Set*>(user)->where = static_cast<Set*>(user)->value; };
    EXPECT_OK(CALL(stream, launch_host, s, store, &set));
    EXPECT_OK(all_reduce(handle, values, s));
    if (rank == 0) give_others_time();
    slow.open();
    EXPECT_OK(s.synchronize());
    EXPECT_EQ(values[0], 11.0f);
  });
}

// The first operation sits on a stream that is held up, the second on a free one. Rank 1 queues both on one stream: had
// rank 0 run them in the order of its streams, the ranks would disagree.
TEST(Comm, OperationsRunInTheOrderOfTheCallsOnWhateverStreams) {
  with_ranks(2, [](int32_t rank, concord_comm handle) {
    const TestStream held, free;
    std::vector<float> first = {1}, second(1000, 2);
    Gate gate;
    if (rank == 0) gate.block(held);
    EXPECT_OK(all_reduce(handle, first, held));
    EXPECT_OK(all_reduce(handle, second, rank == 0 ? free : held));
    give_others_time();
    if (rank == 0) {
      EXPECT_FALSE(free.done());
    }
    gate.open();
    EXPECT_OK(held.synchronize());
    EXPECT_OK(free.synchronize());
    EXPECT_EQ(first[0], 2.0f);
    EXPECT_EQ(second[999], 4.0f);
  });
}

TEST(Comm, AnInlineOperationTakesItsTurnBehindQueuedOnes) {
  with_ranks(2, [](int32_t rank, concord_comm handle) {
    const TestStream s;
    std::vector<float> first = {1}, second(10, 2);
    EXPECT_OK(all_reduce(handle, first, s));
    EXPECT_OK(all_reduce(handle, second, rank == 0 ? concord_stream{} : static_cast<concord_stream>(s)));
    if (rank == 0) {
      EXPECT_EQ(first[0], 2.0f) << "the earlier one is done before the later one ends";
      EXPECT_EQ(second[0], 4.0f);
    }
    EXPECT_OK(s.synchronize());
  });
}

TEST(Comm, StreamsThatWaitForEachOtherInACircleEndInATimeout) {
  with_ranks(
      1,
      [](int32_t, concord_comm handle) {
        const TestStream a, b;
        TestEvent after_second;
        std::vector<float> first = {1}, second = {2};
        Gate gate;
        gate.block(a);  // represents a wait of a for what b does after its own operation
        EXPECT_OK(all_reduce(handle, first, a));
        EXPECT_OK(all_reduce(handle, second, b));
        EXPECT_FAILS(b.synchronize(), CONCORD_STATUS_TIMEOUT, "do the streams wait for each other?");
        EXPECT_FAILS(all_reduce(handle, second, b), CONCORD_STATUS_TIMEOUT, "'test', rank 0");
        gate.open();
        EXPECT_FAILS(a.synchronize(), CONCORD_STATUS_TIMEOUT, "waited 200 ms");
      },
      200);
}

TEST(Comm, ManyOperationsOnSeveralCommunicatorsAndStreamsAtOnce) {
  constexpr int kComms = 3, kRounds = 200;
  std::vector<Id> ids;
  for (int c = 0; c < kComms; ++c) ids.push_back(new_id());
  const auto one = [&](int32_t rank, int c) {
    concord_comm handle = join(2, rank, ids[static_cast<size_t>(c)]);
    const TestStream a, b;
    std::vector<std::vector<float>> values(kRounds, std::vector<float>(17, 1));
    for (size_t i = 0; i < kRounds; ++i) EXPECT_OK(all_reduce(handle, values[i], i % 3 == 0 ? a : b));
    EXPECT_OK(a.synchronize());
    EXPECT_OK(b.synchronize());
    for (const auto& value : values) EXPECT_EQ(value, std::vector<float>(17, 2));
    EXPECT_OK(CALL(comm, destroy, handle));
  };
  std::vector<std::thread> threads;
  for (int c = 0; c < kComms; ++c) {
    for (int32_t rank = 0; rank < 2; ++rank) threads.emplace_back(one, rank, c);
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Comm, SplitMakesGroupsAndGivesNonMembersNull) {
  with_ranks(3, [](int32_t rank, concord_comm handle) {
    const int32_t pair[] = {2, 0};
    concord_comm part = reinterpret_cast<concord_comm>(uintptr_t{1});
    EXPECT_OK(CALL(comm, split, handle, rank == 1 ? nullptr : pair, rank == 1 ? 0 : 2, nullptr, &part));
    if (rank == 1) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    int32_t new_rank = -1;
    EXPECT_OK(CALL(comm, rank, part, &new_rank));
    EXPECT_EQ(new_rank, rank == 2 ? 0 : 1);
    std::vector<float> values = {static_cast<float>(rank)};
    EXPECT_OK(all_reduce(part, values, nullptr));
    EXPECT_EQ(values[0], 2.0f);
    EXPECT_OK(CALL(comm, destroy, part));
  });
}

TEST(Comm, AbortEndsQueuedAndRunningOperationsEverywhereAndLaterCallsToo) {
  std::atomic<bool> both_queued = false;
  with_ranks(2, [&](int32_t rank, concord_comm handle) {
    const TestStream s, other;
    std::vector<float> running = {1}, queued = {1};
    if (rank == 0) {  // waits for rank 1, which never comes
      EXPECT_OK(all_reduce(handle, running, s));
      EXPECT_OK(all_reduce(handle, queued, other));
      both_queued.store(true);
      EXPECT_FAILS(s.synchronize(), CONCORD_STATUS_ABORTED, "abort");
      EXPECT_FAILS(other.synchronize(), CONCORD_STATUS_ABORTED, "abort");
    } else {
      while (!both_queued.load()) std::this_thread::yield();
      give_others_time();
      EXPECT_OK(CALL(comm, abort, handle));
    }
    EXPECT_EQ(error_of(handle), CONCORD_STATUS_ABORTED);
    EXPECT_THAT(sdk::TestHost::detail(), ::testing::HasSubstr("abort"));
    EXPECT_FAILS(all_reduce(handle, running, s), CONCORD_STATUS_ABORTED, "abort");
    EXPECT_OK(s.synchronize());
  });
}

TEST(Comm, RanksThatDisagreeAreToldOnTheStreamAndByEveryLaterCall) {
  with_ranks(2, [](int32_t rank, concord_comm handle) {
    const TestStream s;
    std::vector<float> values(static_cast<size_t>(rank + 1), 1.0f);
    EXPECT_OK(all_reduce(handle, values, s));
    EXPECT_EQ(s.synchronize(), CONCORD_STATUS_INVALID_ARGUMENT);
    const std::string sentence = sdk::TestHost::detail();
    EXPECT_NE(sentence, "");
    EXPECT_FAILS(all_reduce(handle, values, s), CONCORD_STATUS_INVALID_ARGUMENT, sentence);
    EXPECT_FAILS(CALL(comm, barrier, handle, nullptr), CONCORD_STATUS_INVALID_ARGUMENT, sentence);
    sdk::TestHost::detail().clear();
    EXPECT_EQ(error_of(handle), CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(sdk::TestHost::detail(), sentence);
  });
}

TEST(Comm, DestroyWaitsForQueuedOperations) {
  with_ranks(1, [](int32_t, concord_comm) {
    concord_comm handle = join(1, 0, new_id());
    const TestStream s;
    std::vector<float> values = {1};
    Gate gate;
    std::atomic<bool> opened = false;
    gate.block(s);
    EXPECT_OK(all_reduce(handle, values, s));
    std::thread opener([&] {
      give_others_time();
      opened.store(true);
      gate.open();
    });
    EXPECT_OK(CALL(comm, destroy, handle));
    EXPECT_TRUE(opened.load());
    opener.join();
  });
}

TEST(Comm, StreamsOfAnotherDeviceAreRefused) {
  concord_comm handle = join(1, 0, new_id(), 1000, 1);
  const TestStream on_0(0), on_1(1);
  std::vector<float> values = {1};
  EXPECT_REFUSED(all_reduce(handle, values, on_0), "the stream belongs to device 0; this needs one of device 1");
  EXPECT_OK(all_reduce(handle, values, on_1));
  EXPECT_OK(on_1.synchronize());
  EXPECT_OK(CALL(comm, destroy, handle));
}

TEST(Comm, WrongArgumentsAreRefusedAndLeaveTheCommunicatorWell) {
  concord_comm h = join(1, 0, new_id());
  float a[4] = {}, b[4] = {};
  const int64_t zeros[] = {0}, negative[] = {-1};
  const concord_p2p_item bad_peer = {CONCORD_P2P_SEND, 1, a, 1, kF32, 0};
  const int32_t outside[] = {1};
  concord_comm part = nullptr;
  EXPECT_REFUSED(CALL(comm, all_reduce, h, nullptr, b, 4, kF32, kSum, nullptr), "send is null");
  EXPECT_REFUSED(CALL(comm, all_reduce, h, a, b, -4, kF32, kSum, nullptr), "count is -4");
  EXPECT_REFUSED(CALL(comm, all_reduce, h, a, b, 4, 0, kSum, nullptr), "dtype 0");
  EXPECT_REFUSED(CALL(comm, all_reduce, h, a, b, 4, kF32, 9, nullptr), "reduction 9");
  EXPECT_FAILS(CALL(comm, all_reduce, h, a, b, 4, CONCORD_DTYPE_BOOL, CONCORD_REDUCE_AVG, nullptr),
               CONCORD_STATUS_UNIMPLEMENTED, "avg of bool");
  EXPECT_REFUSED(CALL(comm, reduce, h, a, b, 4, kF32, kSum, 1, nullptr), "root is 1");
  EXPECT_REFUSED(CALL(comm, broadcast, h, a, b, 4, kF32, -1, nullptr), "root is -1");
  EXPECT_REFUSED(CALL(comm, all_gather, h, a, nullptr, 4, kF32, nullptr), "recv is null");
  EXPECT_REFUSED(CALL(comm, reduce_scatter, h, a, a + 1, 2, kF32, kSum, nullptr), "overlap");
  EXPECT_REFUSED(CALL(comm, all_to_all, h, a, a, 4, kF32, nullptr), "overlap");
  EXPECT_REFUSED(CALL(comm, all_to_all_v, h, a, negative, zeros, b, zeros, zeros, kF32, nullptr),
                 "send_counts[0] is -1");
  EXPECT_REFUSED(CALL(comm, all_to_all_v, h, a, nullptr, zeros, b, zeros, zeros, kF32, nullptr), "send_counts is null");
  EXPECT_REFUSED(CALL(comm, batch_p2p, h, &bad_peer, 1, nullptr), "peer of the batch is 1");
  EXPECT_REFUSED(CALL(comm, batch_p2p, h, nullptr, 1, nullptr), "items is null");
  EXPECT_REFUSED(CALL(comm, split, h, outside, 1, nullptr, &part), "is 1");
  EXPECT_REFUSED(CALL(comm, split, h, outside, -1, nullptr, &part), "-1");
  EXPECT_EQ(error_of(h), CONCORD_STATUS_OK);
  EXPECT_OK(CALL(comm, all_reduce, h, nullptr, nullptr, 0, kF32, kSum, nullptr));
  EXPECT_OK(CALL(comm, batch_p2p, h, nullptr, 0, nullptr));
  EXPECT_OK(CALL(comm, destroy, h));
}

TEST(Comm, WrongSetUpsAreRefused) {
  const Id id = new_id();
  Id out{};
  concord_comm h = nullptr;
  concord_comm_config config{sizeof config, 0, nullptr, -1};
  EXPECT_REFUSED(CALL(comm, unique_id_create, out.data(), 64), "unique_id_size is 128");
  EXPECT_REFUSED(CALL(comm, unique_id_create, nullptr, 128), "null");
  EXPECT_REFUSED(CALL(comm, init, 3, 1, 0, id.data(), 128, nullptr, &h), "device 3");
  EXPECT_REFUSED(CALL(comm, init, 0, 0, 0, id.data(), 128, nullptr, &h), "world is 0");
  EXPECT_REFUSED(CALL(comm, init, 0, 2, 2, id.data(), 128, nullptr, &h), "rank is 2");
  EXPECT_REFUSED(CALL(comm, init, 0, 1, 0, nullptr, 128, nullptr, &h), "null");
  EXPECT_REFUSED(CALL(comm, init, 0, 1, 0, id.data(), 127, nullptr, &h), "127 bytes");
  EXPECT_REFUSED(CALL(comm, init, 0, 1, 0, id.data(), 128, &config, &h), "timeout_ms is -1");
  EXPECT_REFUSED(CALL(comm, init, 0, 1, 0, id.data(), 128, nullptr, nullptr), "null");
  config.timeout_ms = 100;
  EXPECT_EQ(CALL(comm, init, 0, 2, 0, id.data(), 128, &config, &h), CONCORD_STATUS_TIMEOUT) << "nobody else comes";
  EXPECT_EQ(h, nullptr);
}

TEST(Comm, DestroyedAndGarbageHandlesAreRefusedEverywhere) {
  concord_comm freed = join(1, 0, new_id());
  ASSERT_OK(CALL(comm, destroy, freed));
  float a[1], b[1];
  int32_t answer = 0;
  concord_status status = 0;
  for (concord_comm bad : {freed, concord_comm{}, reinterpret_cast<concord_comm>(a)}) {
    EXPECT_REFUSED(CALL(comm, destroy, bad), "communicator");
    EXPECT_REFUSED(CALL(comm, abort, bad), "communicator");
    EXPECT_REFUSED(CALL(comm, async_error, bad, &status), "communicator");
    EXPECT_REFUSED(CALL(comm, rank, bad, &answer), "communicator");
    EXPECT_REFUSED(CALL(comm, size, bad, &answer), "communicator");
    EXPECT_REFUSED(CALL(comm, all_reduce, bad, a, b, 1, kF32, kSum, nullptr), "communicator");
    EXPECT_REFUSED(CALL(comm, barrier, bad, nullptr), "communicator");
    EXPECT_REFUSED(CALL(comm, batch_p2p, bad, nullptr, 0, nullptr), "communicator");
    EXPECT_REFUSED(CALL(comm, split, bad, nullptr, 0, nullptr, &freed), "communicator");
  }
}

TEST(Comm, SupportsTellsWhatTheOperationsTake) {
  int32_t answer = -1;
  EXPECT_OK(CALL(comm, supports, CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_BF16, CONCORD_REDUCE_AVG, &answer));
  EXPECT_EQ(answer, 1);
  EXPECT_OK(CALL(comm, supports, CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_BOOL, CONCORD_REDUCE_AVG, &answer));
  EXPECT_EQ(answer, 0);
  EXPECT_OK(CALL(comm, supports, CONCORD_COMM_BROADCAST, CONCORD_DTYPE_BOOL, 0, &answer));
  EXPECT_EQ(answer, 1);
}

}  // namespace
}  // namespace concord::cpu::testing
