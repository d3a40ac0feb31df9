// Every collective by value: types, reductions, counts around every internal size, in place and not, several worlds.
#include "backends/shm/collectives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/shm/segment.h"
#include "backends/shm/testing/ranks.hpp"
#include "backends/shm/testing/values.hpp"

namespace concord::shm::testing {
namespace {

// A buffer between guard bytes, filled with a pattern.
class Guarded {
 public:
  explicit Guarded(int64_t bytes) : bytes_(bytes), storage_(static_cast<size_t>(bytes + 2 * kGuard), kPattern) {}

  std::byte* data() { return storage_.data() + kGuard; }
  int64_t bytes() const { return bytes_; }
  void put(const Buffer& values, int64_t offset = 0) {
    if (!values.empty()) std::memcpy(data() + offset, values.data(), values.size());
  }
  bool holds(const Buffer& values, int64_t offset = 0) {
    return values.empty() || std::memcmp(data() + offset, values.data(), values.size()) == 0;
  }
  bool untouched(int64_t offset, int64_t bytes) const {
    const auto begin = storage_.begin() + kGuard + offset;
    return std::all_of(begin, begin + bytes, [](std::byte b) { return b == kPattern; });
  }
  bool guards_intact() const { return untouched(-kGuard, kGuard) && untouched(bytes_, kGuard); }

 private:
  static constexpr int64_t kGuard = 128;
  static constexpr std::byte kPattern{0xa5};
  int64_t bytes_;
  std::vector<std::byte> storage_;
};

struct Case {
  int64_t count = 0;
  concord_dtype dtype = CONCORD_DTYPE_F32;
  concord_reduce_op op = CONCORD_REDUCE_SUM;
  bool in_place = false;
  int root = 0;

  uint64_t seed() const { return static_cast<uint64_t>(count * 64 + dtype * 6 + op); }
  int64_t size() const { return sdk::dtype_size(dtype); }
  std::string describe() const {
    return sdk::text("%s x %lld, %s, %s, root %d", sdk::dtype_name(dtype), static_cast<long long>(count),
                     sdk::reduce_name(op), in_place ? "in place" : "out of place", root);
  }
};

std::vector<Buffer> inputs_of_all(const Communicator& comm, const Case& c, int64_t count, int64_t first = 0) {
  std::vector<Buffer> inputs;
  for (int r = 0; r < comm.size(); ++r) inputs.push_back(input(r, count, c.dtype, c.seed(), first));
  return inputs;
}

bool same_on_all_ranks(Communicator& comm, const std::byte* data, int64_t bytes) {
  const uint64_t hash = hash_of(data, bytes);
  std::vector<uint64_t> hashes(static_cast<size_t>(comm.size()));
  comm.all_gather(&hash, hashes.data(), 1, CONCORD_DTYPE_I64);
  return std::all_of(hashes.begin(), hashes.end(), [&](uint64_t other) { return other == hash; });
}

void check_all_reduce(Communicator& comm, const Case& c) {
  const Buffer mine = input(comm.rank(), c.count, c.dtype, c.seed());
  Guarded send(c.count * c.size());
  Guarded recv(c.count * c.size());
  (c.in_place ? recv : send).put(mine);
  comm.all_reduce(c.in_place ? recv.data() : send.data(), recv.data(), c.count, c.dtype, c.op);
  EXPECT_TRUE(c.in_place || send.holds(mine)) << c.describe();
  EXPECT_TRUE(send.guards_intact() && recv.guards_intact()) << c.describe();
  EXPECT_TRUE(same_on_all_ranks(comm, recv.data(), recv.bytes())) << c.describe();
  if (comm.rank() != comm.size() / 2) return;  // the others have the same bits
  EXPECT_EQ(find_wrong(inputs_of_all(comm, c, c.count), recv.data(), c.count, c.dtype, c.op), "") << c.describe();
}

void check_reduce(Communicator& comm, const Case& c) {
  const bool root = comm.rank() == c.root;
  const Buffer mine = input(comm.rank(), c.count, c.dtype, c.seed());
  Guarded send(c.count * c.size());
  Guarded recv(c.count * c.size());
  const bool in_place = c.in_place && root;
  (in_place ? recv : send).put(mine);
  comm.reduce(in_place ? recv.data() : send.data(), root ? recv.data() : nullptr, c.count, c.dtype, c.op, c.root);
  EXPECT_TRUE(in_place || send.holds(mine)) << c.describe();
  EXPECT_TRUE(send.guards_intact() && recv.guards_intact()) << c.describe();
  if (!root) return;
  EXPECT_EQ(find_wrong(inputs_of_all(comm, c, c.count), recv.data(), c.count, c.dtype, c.op), "") << c.describe();
}

void check_reduce_scatter(Communicator& comm, const Case& c) {
  const int64_t block = c.count * c.size();
  const Buffer mine = input(comm.rank(), c.count * comm.size(), c.dtype, c.seed());
  Guarded send(block * comm.size());
  Guarded apart(block);
  send.put(mine);
  std::byte* recv = c.in_place ? send.data() + comm.rank() * block : apart.data();
  comm.reduce_scatter(send.data(), recv, c.count, c.dtype, c.op);
  EXPECT_TRUE(c.in_place || send.holds(mine)) << c.describe();
  EXPECT_TRUE(send.guards_intact() && apart.guards_intact()) << c.describe();
  const auto inputs = inputs_of_all(comm, c, c.count, comm.rank() * c.count);
  EXPECT_EQ(find_wrong(inputs, recv, c.count, c.dtype, c.op), "") << c.describe();
}

void check_broadcast(Communicator& comm, const Case& c) {
  const bool root = comm.rank() == c.root;
  const Buffer wanted = input(c.root, c.count, c.dtype, c.seed());
  Guarded send(c.count * c.size());
  Guarded recv(c.count * c.size());
  if (root) (c.in_place ? recv : send).put(wanted);
  const std::byte* source = c.in_place ? recv.data() : root ? send.data() : nullptr;
  comm.broadcast(source, recv.data(), c.count, c.dtype, c.root);
  EXPECT_TRUE(recv.holds(wanted)) << c.describe();
  EXPECT_TRUE(send.guards_intact() && recv.guards_intact()) << c.describe();
}

void check_all_gather(Communicator& comm, const Case& c) {
  const int64_t block = c.count * c.size();
  const Buffer mine = input(comm.rank(), c.count, c.dtype, c.seed());
  Guarded send(block);
  Guarded recv(block * comm.size());
  send.put(mine);
  if (c.in_place) recv.put(mine, comm.rank() * block);
  comm.all_gather(c.in_place ? recv.data() + comm.rank() * block : send.data(), recv.data(), c.count, c.dtype);
  for (int r = 0; r < comm.size(); ++r) {
    EXPECT_TRUE(recv.holds(input(r, c.count, c.dtype, c.seed()), r * block)) << c.describe() << " from " << r;
  }
  EXPECT_TRUE(send.holds(mine) && send.guards_intact() && recv.guards_intact()) << c.describe();
}

void check_all_to_all(Communicator& comm, const Case& c) {
  const int64_t block = c.count * c.size();
  const Buffer mine = input(comm.rank(), c.count * comm.size(), c.dtype, c.seed());
  Guarded send(block * comm.size());
  Guarded recv(block * comm.size());
  send.put(mine);
  comm.all_to_all(send.data(), recv.data(), c.count, c.dtype);
  for (int r = 0; r < comm.size(); ++r) {
    const Buffer wanted = input(r, c.count, c.dtype, c.seed(), comm.rank() * c.count);
    EXPECT_TRUE(recv.holds(wanted, r * block)) << c.describe() << " from " << r;
  }
  EXPECT_TRUE(send.holds(mine) && send.guards_intact() && recv.guards_intact()) << c.describe();
}

// What |from| sends to |to|: none, little or much, different for every pair.
int64_t uneven_count(int from, int to, int64_t scale) { return (from * 5 + to * 3) % 4 * scale + (from + 2 * to) % 3; }

void check_all_to_all_v(Communicator& comm, const Case& c) {
  constexpr int64_t kGap = 5;
  const auto n = static_cast<size_t>(comm.size());
  std::vector<int64_t> send_counts(n), send_offsets(n), recv_counts(n), recv_offsets(n);
  int64_t send_end = 0;
  int64_t recv_end = 0;
  for (size_t r = n; r-- > 0;) {  // offsets in the opposite order of the ranks, with gaps
    const int peer = static_cast<int>(r);
    send_counts[r] = uneven_count(comm.rank(), peer, c.count);
    recv_counts[r] = uneven_count(peer, comm.rank(), c.count);
    send_offsets[r] = send_end + kGap;
    recv_offsets[r] = recv_end + kGap;
    send_end = send_offsets[r] + send_counts[r];
    recv_end = recv_offsets[r] + recv_counts[r];
  }
  Guarded send(send_end * c.size());
  Guarded recv(recv_end * c.size());
  for (size_t r = 0; r < n; ++r) {
    send.put(input(comm.rank(), send_counts[r], c.dtype, c.seed() + r), send_offsets[r] * c.size());
  }
  comm.all_to_all_v(send.data(), send_counts.data(), send_offsets.data(), recv.data(), recv_counts.data(),
                    recv_offsets.data(), c.dtype);
  for (size_t r = 0; r < n; ++r) {
    const auto me = static_cast<uint64_t>(comm.rank());
    const Buffer wanted = input(static_cast<int>(r), recv_counts[r], c.dtype, c.seed() + me);
    EXPECT_TRUE(recv.holds(wanted, recv_offsets[r] * c.size())) << c.describe() << " from " << r;
    EXPECT_TRUE(recv.untouched((recv_offsets[r] - kGap) * c.size(), kGap * c.size())) << c.describe() << " from " << r;
  }
  EXPECT_TRUE(send.guards_intact() && recv.guards_intact()) << c.describe();
}

// Element counts at and around every size at which |world| ranks change what they do, for elements of |size| bytes.
std::vector<int64_t> interesting_counts(int world, int64_t size) {
  if (world == 1) return {100003};  // nothing is split there
  const int64_t slot = Geometry(world).slot_bytes;
  const int64_t chunk = slot / (world + 1) / 64 * 64 * world;
  std::vector<int64_t> counts;
  for (const int64_t bytes : {kOnePhaseBytes, slot / world / 64 * 64, chunk, slot, 2 * chunk}) {
    for (const int64_t count : {bytes / size, bytes / size + 1}) counts.push_back(count);
  }
  counts.push_back(3 * slot / size - 1);
  return counts;
}

class CollectivesTest : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Worlds, CollectivesTest, ::testing::Values(1, 2, 3, 4, 8),
                         [](const auto& test) { return "World" + std::to_string(test.param); });

template <class Check>
void for_every_reduction(Communicator& comm, const Check& check) {
  for (const concord_dtype dtype : kAllTypes) {
    for (const concord_reduce_op op : kAllReductions) {
      if (!supports(CONCORD_COMM_ALL_REDUCE, dtype, op)) continue;
      for (const int64_t count : {0, 1, 3, 1021}) {
        for (const bool in_place : {false, true}) check(comm, Case{count, dtype, op, in_place, 0});
      }
    }
  }
}

TEST_P(CollectivesTest, AllReduceIsRightForEveryTypeAndReduction) {
  in_threads(world(), [](Communicator& comm) { for_every_reduction(comm, check_all_reduce); });
}

TEST_P(CollectivesTest, ReduceIsRightForEveryTypeAndReduction) {
  in_threads(world(), [](Communicator& comm) {
    for_every_reduction(comm, [](Communicator& c, Case with_root) {
      for (const int root : {0, c.size() - 1}) {
        with_root.root = root;
        check_reduce(c, with_root);
      }
    });
  });
}

TEST_P(CollectivesTest, ReduceScatterIsRightForEveryTypeAndReduction) {
  in_threads(world(), [](Communicator& comm) { for_every_reduction(comm, check_reduce_scatter); });
}

constexpr concord_dtype kSomeTypes[] = {CONCORD_DTYPE_F32, CONCORD_DTYPE_I16};

TEST_P(CollectivesTest, ReductionsAreRightAroundEveryInternalSize) {
  in_threads(world(), [](Communicator& comm) {
    for (const concord_dtype dtype : kSomeTypes) {
      for (const int64_t count : interesting_counts(comm.size(), sdk::dtype_size(dtype))) {
        const bool in_place = count % 2 == 0;
        check_all_reduce(comm, {count, dtype, CONCORD_REDUCE_SUM, in_place, 0});
        check_reduce(comm, {count, dtype, CONCORD_REDUCE_SUM, in_place, comm.size() / 2});
        check_reduce_scatter(comm, {count / comm.size() + 1, dtype, CONCORD_REDUCE_SUM, in_place, 0});
      }
    }
  });
}

TEST_P(CollectivesTest, CopiesAreRightForEveryType) {
  in_threads(world(), [](Communicator& comm) {
    for (const concord_dtype dtype : kAllTypes) {
      for (const int64_t count : {0, 1, 3, 1021}) {
        for (const bool in_place : {false, true}) {
          for (int root = 0; root < comm.size(); ++root) check_broadcast(comm, {count, dtype, 0, in_place, root});
          check_all_gather(comm, {count, dtype, 0, in_place, 0});
        }
        check_all_to_all(comm, {count, dtype, 0, false, 0});
        check_all_to_all_v(comm, {count, dtype, 0, false, 0});
      }
    }
  });
}

TEST_P(CollectivesTest, CopiesAreRightAroundEveryInternalSize) {
  in_threads(world(), [](Communicator& comm) {
    for (const concord_dtype dtype : {CONCORD_DTYPE_I8, CONCORD_DTYPE_I64}) {
      for (const int64_t count : interesting_counts(comm.size(), sdk::dtype_size(dtype))) {
        const bool in_place = count % 2 == 0;
        check_broadcast(comm, {count, dtype, 0, in_place, comm.size() - 1});
        check_all_gather(comm, {count, dtype, 0, in_place, 0});
        check_all_to_all(comm, {count / comm.size() + 1, dtype, 0, false, 0});
        check_all_to_all_v(comm, {count / comm.size() + 1, dtype, 0, false, 0});
      }
    }
  });
}

// The same buffer in one call and in many of odd sizes.
TEST_P(CollectivesTest, SumsHaveTheSameBitsHoweverABufferIsCut) {
  in_threads(world(), [](Communicator& comm) {
    constexpr int64_t kCount = 300007;
    for (const concord_dtype dtype : {CONCORD_DTYPE_F32, CONCORD_DTYPE_BF16, CONCORD_DTYPE_F16}) {
      const int64_t size = sdk::dtype_size(dtype);
      const Buffer mine = input(comm.rank(), kCount, dtype, 7);
      Buffer whole(mine.size());
      Buffer cut(mine.size());
      comm.all_reduce(mine.data(), whole.data(), kCount, dtype, CONCORD_REDUCE_SUM);
      int64_t length = 1;
      for (int64_t at = 0; at < kCount; at += length, length = length * 3 + 1) {
        length = std::min(length, kCount - at);
        comm.all_reduce(mine.data() + at * size, cut.data() + at * size, length, dtype, CONCORD_REDUCE_SUM);
      }
      EXPECT_TRUE(whole == cut) << sdk::dtype_name(dtype);
    }
  });
}

TEST_P(CollectivesTest, BarrierHoldsUntilTheLastRankHasCome) {
  std::atomic<int> arrived{0};
  in_threads(world(), [&](Communicator& comm) {
    for (int i = 1; i <= 200; ++i) {
      ++arrived;
      comm.barrier();
      EXPECT_GE(arrived.load(), i * comm.size());
    }
  });
}

TEST_P(CollectivesTest, ManyMixedOperationsInARowKeepTheirData) {
  in_threads(world(), [](Communicator& comm) {
    for (int64_t i = 0; i < 25; ++i) {
      const int64_t count = static_cast<int64_t>(mix(static_cast<uint64_t>(i)) % 9000);
      const int root = static_cast<int>(i % comm.size());
      check_all_reduce(comm, {count, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, i % 2 == 0, 0});
      check_broadcast(comm, {count, CONCORD_DTYPE_I16, 0, i % 2 == 1, root});
      check_all_gather(comm, {count, CONCORD_DTYPE_U8, 0, i % 2 == 0, 0});
      check_reduce(comm, {count, CONCORD_DTYPE_I32, CONCORD_REDUCE_MAX, i % 2 == 1, root});
      check_all_to_all(comm, {count, CONCORD_DTYPE_F16, 0, false, 0});
      check_reduce_scatter(comm, {count, CONCORD_DTYPE_F64, CONCORD_REDUCE_AVG, i % 2 == 0, 0});
    }
  });
}

TEST(CollectivesInProcessesTest, ResultsAreRightBetweenRealProcesses) {
  for (const int world : {2, 3, 8}) {  // 8: more ranks than processors on a small machine
    in_processes(world, [](Communicator& comm) {
      for (const concord_dtype dtype : kSomeTypes) {
        for (const int64_t count : {0, 1, 1021, 100003}) {
          check_all_reduce(comm, {count, dtype, CONCORD_REDUCE_SUM, true, 0});
          check_reduce_scatter(comm, {count, dtype, CONCORD_REDUCE_MAX, false, 0});
          check_all_gather(comm, {count, dtype, 0, true, 0});
          check_broadcast(comm, {count, dtype, 0, false, 1});
          check_all_to_all_v(comm, {count, dtype, 0, false, 0});
        }
      }
    });
  }
}

}  // namespace
}  // namespace concord::shm::testing
