// Set-up, split, ranks that disagree, silence, abort, several communicators at once. Ranks are threads.
#include "backends/shm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "backends/shm/testing/ranks.hpp"
#include "backends/shm/testing/values.hpp"

namespace concord::shm::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// For what is meant to time out; long enough for set-up on a machine that is busy with other things.
constexpr milliseconds kShort{1000};

int64_t sum_over(Engine& comm, int64_t value) {
  comm.all_reduce(&value, &value, 1, CONCORD_DTYPE_I64, CONCORD_REDUCE_SUM);
  return value;
}

// -------------------------------------------------------------------------------------------------------------- set-up

TEST(SetUpTest, IdsAreRandom) {
  EXPECT_NE(new_id(), new_id());
  Id id;
  EXPECT_EQ(failure_of([&] { create_unique_id(id.data(), 127); }).status, CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(failure_of([&] { create_unique_id(nullptr, 128); }).status, CONCORD_STATUS_INVALID_ARGUMENT);
}

TEST(SetUpTest, WrongArgumentsAreRefused) {
  const Id id = new_id();
  const auto status = [&](int world, int rank, const void* bytes, int64_t count, Options options = test_options()) {
    return failure_of([&] { Communicator::connect(world, rank, bytes, count, options); }).status;
  };
  EXPECT_EQ(status(0, 0, id.data(), 128), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(status(2, 2, id.data(), 128), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(status(2, -1, id.data(), 128), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(status(2, 0, nullptr, 128), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(status(2, 0, id.data(), 64), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(status(2, 0, id.data(), 128, test_options("x", milliseconds(0))), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(status(1 << 20, 0, id.data(), 128), CONCORD_STATUS_UNIMPLEMENTED);
}

TEST(SetUpTest, RanksKnowTheirPlaceAndName) {
  std::atomic<int> sum{0};
  in_threads(
      3,
      [&](Communicator& comm) {
        EXPECT_EQ(comm.size(), 3);
        EXPECT_EQ(comm.name(), "grads");
        sum += 1 << comm.rank();
      },
      test_options("grads"));
  EXPECT_EQ(sum, 0b111);
}

// A rank that waits for its peer on this host must not keep the network waiting (backends/net).
TEST(SetUpTest, ARankThatSleepsInAnOperationCallsMeanwhile) {
  std::atomic<bool> called{false};
  in_threads(2, [&](Communicator& comm) {
    const Call call{CONCORD_COMM_BARRIER, 0, 0, -1, 0};
    if (comm.rank() == 0) comm.act_for(&call, [&] { called = true; });
    while (comm.rank() == 1 && !called) std::this_thread::sleep_for(milliseconds(1));  // ends only if it is called
    comm.barrier();
    comm.act_for(nullptr);
  });
  EXPECT_TRUE(called);
}

TEST(RoundTest, EveryRankReadsTheSlotsOfAllInTheirOrder) {
  in_threads(3, [&](Communicator& comm) {
    const auto last = static_cast<size_t>(comm.slot_bytes()) - 1;
    for (int i = 0; i < 5; ++i) {  // slots alternate
      const auto value = [&](int rank) { return static_cast<std::byte>(10 * rank + i); };
      const auto fill = [&](std::byte* slot) { slot[0] = slot[last] = value(comm.rank()); };
      comm.round(fill, [&](std::span<const std::byte* const> slots) {
        ASSERT_EQ(slots.size(), 3u);
        for (int r = 0; r < 3; ++r) {
          EXPECT_EQ(slots[static_cast<size_t>(r)][0], value(r));
          EXPECT_EQ(slots[static_cast<size_t>(r)][last], value(r));
        }
      });
    }
  });
}

TEST(SetUpTest, AMissingRankIsATimeoutThatNamesItOnEveryRankThatCame) {
  const Id id = new_id();
  in_threads(4, [&](int rank) {
    if (rank == 2) return;
    const Caught caught =
        failure_of([&] { connect(4, rank, id, test_options("late", rank == 0 ? kShort : milliseconds(60000))); });
    EXPECT_EQ(caught.status, CONCORD_STATUS_TIMEOUT);
    EXPECT_THAT(caught.text, HasSubstr("'late'"));
    EXPECT_THAT(caught.text, HasSubstr("have not joined within 1000 ms: 2"));
  });
}

TEST(SetUpTest, WithoutRankZeroTheOthersTimeOut) {
  const Id id = new_id();
  const Caught caught = failure_of([&] { connect(2, 1, id, test_options("alone", kShort)); });
  EXPECT_EQ(caught.status, CONCORD_STATUS_TIMEOUT);
  EXPECT_THAT(caught.text, HasSubstr("no rank 0 within 1000 ms"));
}

TEST(SetUpTest, ARankOfAnotherHostIsToldSoAtOnce) {
  Id id = new_id();
  id.back() ^= std::byte{1};  // where it says which host made it
  for (const int rank : {0, 1}) {
    const Caught caught = failure_of([&] { Communicator::connect(2, rank, id.data(), 128, test_options()); });
    EXPECT_EQ(caught.status, CONCORD_STATUS_UNAVAILABLE);
    EXPECT_THAT(caught.text, HasSubstr("runs on another host"));
  }
}

TEST(SetUpTest, AGuestThatGivesUpTellsTheOthers) {
  const Id id = new_id();
  in_threads(2, [&](int rank) {  // of 3
    const Caught caught =
        failure_of([&] { connect(3, rank, id, test_options("x", rank == 1 ? kShort : milliseconds(60000))); });
    EXPECT_EQ(caught.status, CONCORD_STATUS_TIMEOUT);
    EXPECT_THAT(caught.text, HasSubstr("rank 1 has met rank 0"));
  });
}

TEST(SetUpTest, TwoRanksWithTheSameNumberAreAnErrorOnEveryRank) {
  const Id id = new_id();
  const int numbers[] = {0, 1, 1};
  in_threads(3, [&](int thread) {
    const Caught caught = failure_of([&] { connect(4, numbers[thread], id); });
    EXPECT_EQ(caught.status, CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_THAT(caught.text, HasSubstr("rank 1"));
    EXPECT_THAT(caught.text, HasSubstr("has the same rank as"));
  });
}

TEST(SetUpTest, TwoRankZerosAreAnError) {
  const Id id = new_id();
  std::atomic<bool> refused{false};
  in_threads(2, [&](int rank) {
    if (rank == 1) {  // asks until the other rank has arrived, then joins it correctly
      while (!refused) {
        const Caught caught = failure_of([&] { connect(2, 0, id, test_options("x", milliseconds(1))); });
        refused = caught.status == CONCORD_STATUS_INVALID_ARGUMENT;
        EXPECT_TRUE(!refused || caught.text.find("another rank 0") != std::string::npos) << caught.text;
      }
    }
    while (true) {
      std::unique_ptr<Communicator> comm;
      const Caught caught = failure_of([&] { comm = connect(2, rank, id); });
      if (rank == 0 && caught.status == CONCORD_STATUS_INVALID_ARGUMENT) continue;  // it was the second this time
      ASSERT_EQ(caught.status, CONCORD_STATUS_OK) << caught.text;
      EXPECT_EQ(sum_over(*comm, rank), 1);
      return;
    }
  });
}

TEST(SetUpTest, DifferentWorldSizesAreAnErrorThatNamesBoth) {
  const Id id = new_id();
  in_threads(2, [&](int rank) {
    const Caught caught = failure_of([&] { connect(rank == 0 ? 2 : 3, rank, id); });
    EXPECT_EQ(caught.status, CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_THAT(caught.text, HasSubstr("rank 1"));
    EXPECT_THAT(caught.text, HasSubstr("expects 3 ranks, rank 0"));
    EXPECT_THAT(caught.text, HasSubstr("expects 2"));
  });
}

TEST(SetUpTest, WhoDoesNotKnowTheWholeIdDoesNotGetIn) {
  const Id id = new_id();
  Id guessed = id;
  guessed[kUniqueIdBytes / 2] ^= std::byte{1};  // the socket's name is right, the secret is not
  in_threads(3, [&](int thread) {
    if (thread == 2) {
      EXPECT_EQ(failure_of([&] { connect(2, 1, guessed); }).status, CONCORD_STATUS_PEER_LOST);
      return;
    }
    if (thread == 1) std::this_thread::sleep_for(milliseconds(50));
    auto comm = connect(2, thread, id);
    EXPECT_EQ(sum_over(*comm, thread), 1);
  });
}

TEST(SetUpTest, MemoryIsBounded) {
  for (const int world : {1, 2, 3, 8, 64, 1024}) {
    EXPECT_GT(bytes_per_rank(world), 0);
    EXPECT_LE(bytes_per_rank(world), 16 << 20) << world;
  }
}

TEST(SetUpTest, SupportsSaysWhatWorks) {
  for (const concord_dtype dtype : kAllTypes) {
    EXPECT_TRUE(supports(CONCORD_COMM_ALL_GATHER, dtype, 0));
    EXPECT_TRUE(supports(CONCORD_COMM_P2P, dtype, 0));
    EXPECT_TRUE(supports(CONCORD_COMM_REDUCE_SCATTER, dtype, CONCORD_REDUCE_MAX));
  }
  EXPECT_TRUE(supports(CONCORD_COMM_BARRIER, 0, 0));
  EXPECT_FALSE(supports(CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_BOOL, CONCORD_REDUCE_AVG));
  EXPECT_FALSE(supports(CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, 0));
  EXPECT_FALSE(supports(CONCORD_COMM_BROADCAST, 11, 0));
  EXPECT_FALSE(supports(0, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM));
  EXPECT_FALSE(supports(10, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM));
}

// --------------------------------------------------------------------------------------------------------------- split

TEST(SplitTest, DisjointGroupsAndNonMembersAtOnce) {
  in_threads(7, [](Communicator& comm) {
    const std::vector<std::vector<int32_t>> groups = {{0, 3}, {5, 1, 2}};  // 4 and 6 are in none
    std::vector<int32_t> mine;
    for (const auto& group : groups) {
      if (std::find(group.begin(), group.end(), comm.rank()) != group.end()) mine = group;
    }
    auto part = comm.split(mine, test_options("part"));
    ASSERT_EQ(part == nullptr, mine.empty());
    if (part != nullptr) {
      EXPECT_EQ(part->name(), "part");
      EXPECT_EQ(part->size(), static_cast<int32_t>(mine.size()));
      EXPECT_EQ(mine[static_cast<size_t>(part->rank())], comm.rank());  // in the order of the list
      EXPECT_EQ(sum_over(*part, comm.rank()), comm.rank() == 0 || comm.rank() == 3 ? 3 : 8);
    }
    EXPECT_EQ(sum_over(comm, 1), 7);  // the parent still works
  });
}

TEST(SplitTest, SplitsOfSplitsAndOfOne) {
  in_threads(4, [](Communicator& comm) {
    const int32_t first = comm.rank() / 2 * 2;
    const int32_t pair[] = {first, first + 1};
    auto half = comm.split(pair, test_options("half"));
    const int32_t self[] = {half->rank()};
    auto one = half->split(self, test_options("one"));
    EXPECT_EQ(one->size(), 1);
    EXPECT_EQ(sum_over(*half, comm.rank()), 2 * first + 1);
    EXPECT_EQ(sum_over(*one, comm.rank()), comm.rank());
    EXPECT_NE(one->split(std::array<int32_t, 1>{0}), nullptr);
  });
}

TEST(SplitTest, ListsThatDisagreeAreAnErrorOnEveryRank) {
  in_threads(3, [](Communicator& comm) {
    const std::vector<int32_t> lists[] = {{0, 1}, {0, 1, 2}, {0, 1, 2}};
    const Caught caught = failure_of([&] {
      auto part = comm.split(lists[comm.rank()]);
      comm.barrier();
    });
    EXPECT_EQ(caught.status, CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_THAT(caught.text, HasSubstr("different lists"));
  });
}

TEST(SplitTest, BadListsAreRefusedBeforeAnythingIsSent) {
  in_threads(2, [](Communicator& comm) {
    const int32_t other[] = {1 - comm.rank()};
    const int32_t twice[] = {comm.rank(), comm.rank()};
    const int32_t unknown[] = {comm.rank(), 2};
    EXPECT_EQ(failure_of([&] { comm.split(other); }).status, CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(failure_of([&] { comm.split(twice); }).status, CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(failure_of([&] { comm.split(unknown); }).status, CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(sum_over(comm, 1), 2);
  });
}

// ------------------------------------------------------------------------------------------------- ranks that disagree

using Act = std::function<void(Communicator& comm, float* data)>;

// Rank 1 of 3 calls something else than the others; all hear the same, and again in every later call.
void expect_disagreement(const Act& usual, const Act& odd, const std::string& usual_name, const std::string& odd_name) {
  in_threads(3, [&](Communicator& comm) {
    std::vector<float> data(1000, 1.0f);
    const Caught first = failure_of([&] { (comm.rank() == 1 ? odd : usual)(comm, data.data()); });
    EXPECT_EQ(first.status, CONCORD_STATUS_INVALID_ARGUMENT) << first.text;
    EXPECT_THAT(first.text, HasSubstr(usual_name));
    EXPECT_THAT(first.text, HasSubstr("rank 1"));
    EXPECT_THAT(first.text, HasSubstr(odd_name));
    const Caught later = failure_of([&] { comm.barrier(); });
    EXPECT_EQ(later.status, first.status);
    EXPECT_EQ(later.text, first.text);
    std::string detail;
    EXPECT_EQ(comm.error(&detail), first.status);
    EXPECT_EQ(detail, first.text);
  });
}

constexpr concord_dtype kFloat = CONCORD_DTYPE_F32;

TEST(DisagreementTest, AnotherOperation) {
  expect_disagreement([](Communicator& c, float* d) { c.all_reduce(d, d, 100, kFloat, CONCORD_REDUCE_SUM); },
                      [](Communicator& c, float*) { c.barrier(); }, "all_reduce(f32 x 100, sum)", "barrier");
}

TEST(DisagreementTest, AnotherCount) {
  expect_disagreement([](Communicator& c, float* d) { c.all_reduce(d, d, 100, kFloat, CONCORD_REDUCE_SUM); },
                      [](Communicator& c, float* d) { c.all_reduce(d, d, 101, kFloat, CONCORD_REDUCE_SUM); },
                      "all_reduce(f32 x 100, sum)", "all_reduce(f32 x 101, sum)");
}

TEST(DisagreementTest, AnotherTypeOfTheSameSize) {
  expect_disagreement([](Communicator& c, float* d) { c.broadcast(d, d, 9, kFloat, 0); },
                      [](Communicator& c, float* d) { c.broadcast(d, d, 9, CONCORD_DTYPE_I32, 0); },
                      "broadcast(f32 x 9, root 0)", "broadcast(i32 x 9, root 0)");
}

TEST(DisagreementTest, AnotherReduction) {
  expect_disagreement([](Communicator& c, float* d) { c.reduce_scatter(d, d, 0, kFloat, CONCORD_REDUCE_SUM); },
                      [](Communicator& c, float* d) { c.reduce_scatter(d, d, 0, kFloat, CONCORD_REDUCE_AVG); }, "sum",
                      "avg");
}

TEST(DisagreementTest, AnotherRoot) {
  expect_disagreement([](Communicator& c, float* d) { c.broadcast(d, d, 9, kFloat, 0); },
                      [](Communicator& c, float* d) { c.broadcast(d, d, 9, kFloat, 1); }, "root 0", "root 1");
}

TEST(DisagreementTest, AnotherCountInAnExchangeOfUnevenPieces) {
  in_threads(3, [](Communicator& comm) {
    std::vector<float> send(30, 1.0f), recv(30, 5.0f);
    std::vector<int64_t> counts(3, 4), offsets = {0, 10, 20};
    std::vector<int64_t> wanted = counts;
    if (comm.rank() == 2) wanted[0] = 5;
    const Caught caught = failure_of([&] {
      comm.all_to_all_v(send.data(), counts.data(), offsets.data(), recv.data(), wanted.data(), offsets.data(), kFloat);
      comm.barrier();
    });
    EXPECT_EQ(caught.status, CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_THAT(caught.text, HasSubstr("rank 0 sends 4 elements to rank 2, which receives 5"));
  });
}

TEST(DisagreementTest, ArgumentsThatAreWrongOnTheirOwnDoNotSpoilTheCommunicator) {
  in_threads(2, [](Communicator& comm) {
    float data[4] = {};
    const auto status = [&](const auto& action) { return failure_of(action).status; };
    EXPECT_EQ(status([&] { comm.all_reduce(data, data, -1, kFloat, CONCORD_REDUCE_SUM); }),
              CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(status([&] { comm.all_reduce(data, nullptr, 1, kFloat, CONCORD_REDUCE_SUM); }),
              CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(status([&] { comm.all_reduce(data, data, 1, 99, CONCORD_REDUCE_SUM); }), CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(status([&] { comm.all_reduce(data, data, 1, kFloat, 9); }), CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(status([&] { comm.broadcast(data, data, 1, kFloat, 2); }), CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(status([&] { comm.all_gather(data, data, INT64_MAX, kFloat); }), CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(status([&] { comm.all_reduce(data, data, 1, CONCORD_DTYPE_BOOL, CONCORD_REDUCE_AVG); }),
              CONCORD_STATUS_UNIMPLEMENTED);
    const concord_p2p_item item{CONCORD_P2P_SEND, 5, data, 1, kFloat, 0};
    EXPECT_EQ(status([&] { comm.batch_p2p({&item, 1}); }), CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(comm.error(nullptr), CONCORD_STATUS_OK);
    EXPECT_EQ(sum_over(comm, 1), 2);
  });
}

// --------------------------------------------------------------------------------------------------- silence and abort

TEST(SilenceTest, ARankThatDoesNotComeIsATimeoutThatNamesItAndTheOperation) {
  in_threads(
      3,
      [](Communicator& comm) {
        comm.barrier();
        if (comm.rank() == 1) {
          while (comm.error(nullptr) == CONCORD_STATUS_OK) std::this_thread::sleep_for(milliseconds(5));
        }
        const Caught caught = failure_of([&] { sum_over(comm, 1); });
        EXPECT_EQ(caught.status, CONCORD_STATUS_TIMEOUT);
        EXPECT_THAT(caught.text, HasSubstr("all_reduce(i64 x 1, sum)"));
        EXPECT_THAT(caught.text, HasSubstr("for rank 1 (pid"));
        EXPECT_THAT(caught.text, HasSubstr("is not in an operation"));
      },
      test_options("quiet", kShort));
}

TEST(SilenceTest, AReceiveThatNobodySendsIsATimeout) {
  in_threads(
      2,
      [](Communicator& comm) {
        char data = 0;
        const concord_p2p_item item{CONCORD_P2P_RECV, 1 - comm.rank(), &data, 1, CONCORD_DTYPE_I8, 0};
        const Caught caught = failure_of([&] { comm.batch_p2p({&item, 1}); });
        EXPECT_EQ(caught.status, CONCORD_STATUS_TIMEOUT);
        EXPECT_THAT(caught.text, HasSubstr("is in batch_p2p"));
      },
      test_options("quiet", kShort));
}

TEST(SilenceTest, ACommunicatorThatWasDestroyedIsNamedAsTheReason) {
  const Id id = new_id();
  in_threads(2, [&](int rank) {
    auto comm = connect(2, rank, id, test_options("x", kShort));
    comm->barrier();
    if (rank == 1) return;
    const Caught caught = failure_of([&] { comm->barrier(); });
    EXPECT_EQ(caught.status, CONCORD_STATUS_TIMEOUT);
    EXPECT_THAT(caught.text, HasSubstr("rank 1"));
    EXPECT_THAT(caught.text, HasSubstr("has destroyed its communicator"));
  });
}

// Rank 0 is freed by another of its threads, the other ranks by the record that it wrote for them.
TEST(AbortTest, AbortFromAnotherThreadFreesAllRanks) {
  for (const bool transfers : {false, true}) {
    in_threads(4, [&](Communicator& comm) {
      if (comm.rank() == 3) {  // never comes, and hears of it all the same
        while (comm.error(nullptr) == CONCORD_STATUS_OK) std::this_thread::sleep_for(milliseconds(1));
      } else {
        std::thread helper;
        if (comm.rank() == 0) {
          helper = std::thread([&] {
            std::this_thread::sleep_for(milliseconds(100));
            comm.abort();
          });
        }
        char data = 0;
        const concord_p2p_item item{CONCORD_P2P_RECV, 3, &data, 1, CONCORD_DTYPE_I8, 0};
        const Caught caught = failure_of([&] { transfers ? comm.batch_p2p({&item, 1}) : comm.barrier(); });
        EXPECT_EQ(caught.status, CONCORD_STATUS_ABORTED);
        EXPECT_THAT(caught.text, HasSubstr("aborted by rank 0"));
        if (helper.joinable()) helper.join();
      }
      EXPECT_EQ(failure_of([&] { comm.barrier(); }).status, CONCORD_STATUS_ABORTED);
    });
  }
}

TEST(AbortTest, AbortEndsASplitThatWaitsForItsMembers) {
  in_threads(2, [](Communicator& comm) {
    const int32_t all[] = {0, 1};
    std::thread helper;
    if (comm.rank() == 0) {
      helper = std::thread([&] {
        std::this_thread::sleep_for(milliseconds(100));
        comm.abort();
      });
      EXPECT_EQ(failure_of([&] { comm.split(all); }).status, CONCORD_STATUS_ABORTED);
      helper.join();
    } else {
      while (comm.error(nullptr) == CONCORD_STATUS_OK) std::this_thread::sleep_for(milliseconds(1));
    }
  });
}

TEST(AbortTest, TheFirstFailureStays) {
  in_threads(2, [](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 0) comm.abort();
    EXPECT_EQ(failure_of([&] {
                while (true) comm.barrier();
              }).status,
              CONCORD_STATUS_ABORTED);
    std::string before;
    comm.error(&before);
    comm.abort();
    std::string after;
    EXPECT_EQ(comm.error(&after), CONCORD_STATUS_ABORTED);
    EXPECT_EQ(before, after);
  });
}

// ------------------------------------------------------------------------------------------------------------- at once

TEST(AtOnceTest, ManyCommunicatorsFromSeveralThreadsKeepTheirData) {
  constexpr int kWorld = 3;
  constexpr int kCommunicators = 5;
  std::vector<Id> ids(kCommunicators);
  for (Id& id : ids) id = new_id();
  in_threads(kWorld * kCommunicators, [&](int thread) {
    const int rank = thread % kWorld;
    const int number = thread / kWorld;
    auto comm = connect(kWorld, rank, ids[static_cast<size_t>(number)], test_options(sdk::text("c%d", number)));
    for (int64_t i = 0; i < 30; ++i) {
      const int64_t count = 1 + (i * 7919 + number) % 30000;
      std::vector<int32_t> data(static_cast<size_t>(count), static_cast<int32_t>(number * 1000 + rank));
      comm->all_reduce(data.data(), data.data(), count, CONCORD_DTYPE_I32, CONCORD_REDUCE_SUM);
      const auto wanted = static_cast<int32_t>(kWorld * number * 1000 + kWorld * (kWorld - 1) / 2);
      EXPECT_TRUE(std::all_of(data.begin(), data.end(), [&](int32_t value) { return value == wanted; }));
    }
  });
}

TEST(AtOnceTest, AFailureOfOneCommunicatorLeavesTheOthersAlone) {
  in_threads(2, [](Communicator& comm) {
    const int32_t all[] = {0, 1};
    auto first = comm.split(all, test_options("first"));
    auto second = comm.split(all, test_options("second"));
    first->abort();
    EXPECT_EQ(failure_of([&] { first->barrier(); }).status, CONCORD_STATUS_ABORTED);
    EXPECT_EQ(sum_over(*second, 1), 2);
    EXPECT_EQ(sum_over(comm, 1), 2);
  });
}

}  // namespace
}  // namespace concord::shm::testing
