// The bridge between threads that stand for ranks, with several chunks and with failures: rank 0 on cpu, rank 1 on the
// platform that CONCORD_PLATFORM names, or on cpu. Conformance tests all operations and types (--platform bridge:cpu).
#include "platform/bridge/staged_comm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <thread>

#include "platform/bridge/bridge.h"

namespace concord::bridge {
namespace {

Device cpu() { return {open_platform("cpu"), 0}; }

Device other() {
  const char* name = std::getenv("CONCORD_PLATFORM");
  return name == nullptr ? cpu() : Device(open_platform(name), 0);
}

// Elements on a device.
template <class Element>
class Values {
 public:
  Values(Device device, const std::vector<Element>& values)
      : count_(values.size()), memory_(device, static_cast<int64_t>(count_ * sizeof(Element))) {
    copy(device.platform(), memory_.data(), values.data(), memory_.bytes(), CopyKind::kHostToDevice);
  }
  Element* data() const { return memory_.as<Element>(); }
  std::vector<Element> read() const {
    std::vector<Element> values(count_);
    copy(memory_.device().platform(), values.data(), memory_.data(), memory_.bytes(), CopyKind::kDeviceToHost);
    return values;
  }

 private:
  size_t count_;
  Buffer memory_;
};

struct Rank {
  int index;
  Device device;
  const Communicator& comm;
  const Stream& queue;
};

// Runs |body| for two ranks on |devices|, connected by the bridge.
void run_pair(const std::vector<Device>& devices, const std::function<void(const Rank&)>& body) {
  const UniqueId id = create_unique_id(bridge_device(devices[0]).platform());
  std::vector<std::thread> threads;
  for (int index = 0; index < 2; ++index) {
    threads.emplace_back([&, index] {
      try {
        const Device device = devices[static_cast<size_t>(index)];
        device.make_current();
        const Device bridge = bridge_device(device);
        const Communicator comm(bridge, 2, index, id, {"bridge", std::chrono::minutes(1)});
        const Stream queue(bridge);
        body({index, device, comm, queue});
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << index << " threw: " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<float> numbers(size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// Sizes around chunks of 4 MiB; every element differs from the others of its rank, and all sums are exact.
TEST(StagedComm, OperationsOfSeveralChunksAreRightToTheLastElement) {
  for (const int64_t count : {kChunkBytes / 4 - 1, kChunkBytes / 4 + 1, 3 * kChunkBytes / 4 + 5}) {
    run_pair({cpu(), other()}, [count](const Rank& rank) {
      const auto size = static_cast<size_t>(count);
      const auto me = static_cast<float>(rank.index);
      const Values<float> mine(rank.device, numbers(size, me));
      const Values<float> sum(rank.device, std::vector<float>(size)), part(rank.device, std::vector<float>(size));
      const Values<float> all(rank.device, std::vector<float>(2 * size));
      rank.comm.all_reduce(rank.queue, mine.data(), sum.data(), count, DType::kF32, ReduceOp::kSum);
      rank.comm.all_gather(rank.queue, mine.data(), all.data(), count, DType::kF32);
      rank.comm.reduce_scatter(rank.queue, all.data(), part.data(), count, DType::kF32, ReduceOp::kSum);
      rank.comm.broadcast(rank.queue, rank.index == 1 ? mine.data() : nullptr, mine.data(), count, DType::kF32, 1);
      rank.queue.synchronize();
      std::vector<float> expected(size), gathered = numbers(size, 0);
      for (size_t i = 0; i < size; ++i) expected[i] = 2 * static_cast<float>(i) + 1;
      EXPECT_TRUE(sum.read() == expected);
      for (size_t i = 0; i < size; ++i) expected[i] = 2 * (static_cast<float>(i) + me);
      EXPECT_TRUE(part.read() == expected);
      const std::vector<float> second = numbers(size, 1);
      gathered.insert(gathered.end(), second.begin(), second.end());
      EXPECT_TRUE(all.read() == gathered);
      EXPECT_TRUE(mine.read() == second);
    });
  }
}

TEST(StagedComm, OperationsInPlaceAreRightInEveryChunk) {
  run_pair({cpu(), other()}, [](const Rank& rank) {
    constexpr int64_t kCount = 2 * kChunkBytes / 4 + 3;
    const Values<float> values(rank.device, numbers(kCount, static_cast<float>(rank.index)));
    std::vector<float> expected(kCount);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = 4 * static_cast<float>(i) + 2;
    for (int i = 0; i < 2; ++i)
      rank.comm.all_reduce(rank.queue, values.data(), values.data(), kCount, DType::kF32, ReduceOp::kSum);
    rank.queue.synchronize();
    EXPECT_TRUE(values.read() == expected);
  });
}

// The first queue is held until the second one has had the time to overtake it.
TEST(StagedComm, OperationsOnTwoQueuesTakeTurns) {
  run_pair({cpu(), other()}, [](const Rank& rank) {
    constexpr int64_t kCount = 2 * kChunkBytes / 4 + 3, kLess = kCount - 1;
    const Values<float> first(rank.device, numbers(kCount, 0)), second(rank.device, numbers(kLess, 1));
    const Stream another(rank.comm.device());
    rank.queue.launch_host([](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }, nullptr);
    rank.comm.all_reduce(rank.queue, first.data(), first.data(), kCount, DType::kF32, ReduceOp::kSum);
    rank.comm.all_reduce(another, second.data(), second.data(), kLess, DType::kF32, ReduceOp::kSum);
    rank.queue.synchronize();
    another.synchronize();
    std::vector<float> expected(kCount);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = 2 * static_cast<float>(i);
    EXPECT_TRUE(first.read() == expected);
    expected.pop_back();
    for (float& each : expected) each += 2;
    EXPECT_TRUE(second.read() == expected);
  });
}

TEST(StagedComm, ATransferMayBeLargerThanAChunkAndWaitsForNoOther) {
  constexpr int64_t kCount = 3 * kChunkBytes + 7;
  const auto bytes_of = [](int rank) {
    std::vector<uint8_t> bytes(kCount);
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<uint8_t>(i * 31 + i / 256 + static_cast<size_t>(rank));
    return bytes;
  };
  run_pair({cpu(), other()}, [&](const Rank& rank) {
    const int peer = 1 - rank.index;
    const Values<uint8_t> sent(rank.device, bytes_of(rank.index)), got(rank.device, std::vector<uint8_t>(kCount));
    const Values<int32_t> small(rank.device, {rank.index + 10}), answer(rank.device, {0});
    std::vector<concord_p2p_item> items = {
        send_to(peer, sent.data(), kCount, DType::kU8), send_to(peer, small.data(), 1, DType::kI32),
        receive_from(peer, got.data(), kCount, DType::kU8), receive_from(peer, answer.data(), 1, DType::kI32)};
    if (rank.index == 1) std::rotate(items.begin(), items.begin() + 2, items.end());  // receives first
    rank.comm.batch_p2p(rank.queue, items);
    rank.queue.synchronize();
    EXPECT_EQ(answer.read(), std::vector<int32_t>{peer + 10});
    EXPECT_TRUE(got.read() == bytes_of(peer));
  });
}

// The first two chunks of both calls are equal.
TEST(StagedComm, CallsOfDifferentSizesWithEqualChunksAreRefused) {
  std::atomic<int> refused = 0;
  run_pair({cpu(), other()}, [&](const Rank& rank) {
    const int64_t count = (2 + rank.index) * kChunkBytes / 4;
    const std::vector<float> ones(static_cast<size_t>(count), 1.0F);
    const Values<float> values(rank.device, ones);
    rank.comm.all_reduce(rank.queue, values.data(), values.data(), count, DType::kF32, ReduceOp::kSum);
    EXPECT_THROW(rank.queue.synchronize(), Error);
    const auto failure = rank.comm.error();
    ASSERT_TRUE(failure);
    if (failure->status == CONCORD_STATUS_INVALID_ARGUMENT) ++refused;
    EXPECT_TRUE(failure->status == CONCORD_STATUS_INVALID_ARGUMENT || failure->status == CONCORD_STATUS_ABORTED);
    EXPECT_TRUE(values.read() == ones) << "a failed operation must not write its result";
  });
  EXPECT_GE(refused, 1);
}

// The cpu plugin as another one, whose copies from the device fail.
Device with_failing_copies() {
  static loader::Plugin* plugin = [] {
    auto* changed = new loader::Plugin(loader::open_plugin("cpu"));
    changed->path += " with failing copies";
    static const auto original = changed->tables.memory.copy_on_stream;
    changed->tables.memory.copy_on_stream = [](void* self, void* to, const void* from, int64_t bytes,
                                               concord_copy_kind kind, concord_stream stream) -> concord_status {
      if (kind == CONCORD_COPY_DEVICE_TO_HOST) return CONCORD_STATUS_VENDOR_ERROR;
      return original(self, to, from, bytes, kind, stream);
    };
    return changed;
  }();
  return {Platform(*plugin), 0};
}

TEST(StagedComm, AFailedCopyFailsTheCommunicatorAndFreesTheOtherRank) {
  run_pair({cpu(), with_failing_copies()}, [](const Rank& rank) {
    const std::vector<float> ones(8, 1.0F);
    const Values<float> values(rank.device, ones);
    const auto call = [&] {
      rank.comm.all_reduce(rank.queue, values.data(), values.data(), 8, DType::kF32, ReduceOp::kSum);
      rank.queue.synchronize();
    };
    EXPECT_THROW(call(), Error);
    const auto failure = rank.comm.error();
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->status, rank.index == 0 ? CONCORD_STATUS_ABORTED : CONCORD_STATUS_VENDOR_ERROR);
    EXPECT_TRUE(values.read() == ones) << "a failed operation must not write its result";
    EXPECT_THROW(rank.comm.barrier(rank.queue), Error);
  });
}

TEST(StagedComm, ThePlatformIsNamedAfterTheDeviceAndLabelledLikeIt) {
  const Platform bridge = bridge_device(other()).platform();
  EXPECT_EQ(std::string(bridge.name()), "bridge_" + std::string(other().platform().name()));
  EXPECT_EQ(bridge.label(), other().platform().label());
  EXPECT_EQ(bridge_device(other()), bridge_device(other()));
}

}  // namespace
}  // namespace concord::bridge
