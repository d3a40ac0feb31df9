// Channels between threads that stand for ranks, with streams of the cpu backend as the callers' current streams.
#include "core/mesh/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <latch>

#include "platform/bridge/bridge.h"

namespace concord {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr auto kLong = 60s;  // ends a hang; no verdict depends on it

RankGroup ranks_of(int64_t world) {
  const RankGroup::Axis axis[] = {{world, 1}};
  return RankGroup(0, axis);
}

// One rank: the services of a channel, and a channel.
struct Rank {
  Rank(const Platform& platform, std::shared_ptr<Store> store, int64_t rank, int64_t world,
       std::chrono::milliseconds timeout = kLong, bool bridged = false)
      : device(platform, 0),
        carrier(bridged ? bridge::bridge_device(device) : device),
        flight(store, {rank, world, ::testing::TempDir()}),
        channel("tp", ranks_of(world), rank,
                ChannelServices{carrier, store, flight, watchdog, timeout, false, bridged, time}) {
    watchdog.add(this, flight.period(), [this] { flight.answer(); });
  }
  ~Rank() { watchdog.remove(this); }

  Device device;   // of the callers' streams
  Device carrier;  // of the communicator
  FlightService flight;
  Watchdog watchdog;
  const std::shared_ptr<CommunicationTime> time = std::make_shared<CommunicationTime>();
  Channel channel;
};

// Runs |body| on |world| threads, one rank per thread.
void run_ranks(const Platform& platform, int64_t world, const std::function<void(Rank&)>& body,
               std::chrono::milliseconds timeout = kLong, bool bridged = false) {
  const std::shared_ptr<Store> store = make_local_store();
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      try {
        Rank rank(platform, store, r, world, timeout, bridged);
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << " threw: " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

ChannelCall sum(std::vector<float>& values) {
  ChannelCall call;
  call.signature = {CommOp::kAllReduce, DType::kF32, static_cast<int64_t>(values.size()), ReduceOp::kSum, {}, {}};
  call.issue = [&values](const Communicator& comm, const Stream& stream) {
    comm.all_reduce(stream, values.data(), values.data(), static_cast<int64_t>(values.size()), DType::kF32,
                    ReduceOp::kSum);
  };
  return call;
}

// Host functions for streams.
void wait_for_gate(void* gate) { static_cast<std::atomic<bool>*>(gate)->wait(false); }
void write_five(void* values) { static_cast<std::vector<float>*>(values)->assign(3, 5.0F); }
struct Reading {
  const std::vector<float>* from;
  std::vector<float> seen;
};
void read_now(void* reading) { static_cast<Reading*>(reading)->seen = *static_cast<Reading*>(reading)->from; }

void open(std::atomic<bool>& gate) {
  gate = true;
  gate.notify_all();
}

TEST(Channel, ACallWaitsForTheCurrentStreamAndStreamsWaitForTheCall) {
  run_ranks(open_platform("cpu"), 2, [](Rank& rank) {
    rank.channel.create();
    std::atomic<bool> gate = false;
    std::vector<float> values(3, -1.0F);
    Reading reading{&values, {}};
    const Stream current(rank.device);
    const Stream consumer(rank.device);
    current.launch_host(&wait_for_gate, &gate);
    current.launch_host(&write_five, &values);
    const auto call = rank.channel.submit(sum(values), &current);  // returns although its input is not computed yet
    rank.channel.order_after(*call, consumer);                     // does not block the host either
    consumer.launch_host(&read_now, &reading);
    EXPECT_FALSE(rank.channel.done(*call));
    EXPECT_FALSE(consumer.done());
    open(gate);
    consumer.synchronize();
    EXPECT_EQ(reading.seen, std::vector<float>(3, 10.0F));
    rank.channel.wait(*call);
    EXPECT_TRUE(rank.channel.done(*call));
  });
}

TEST(Channel, ACallOverTheBridgeWaitsForTheCurrentStreamAndTheHostForTheCall) {
  const auto body = [](Rank& rank) {
    rank.channel.create();
    std::atomic<bool> gate = false;
    std::vector<float> values(3, -1.0F);
    const Stream current(rank.device);
    current.launch_host(&wait_for_gate, &gate);
    current.launch_host(&write_five, &values);
    const auto call = rank.channel.submit(sum(values), &current);
    EXPECT_FALSE(rank.channel.done(*call));
    open(gate);
    rank.channel.wait(*call);
    EXPECT_EQ(values, std::vector<float>(3, 10.0F));
  };
  run_ranks(open_platform("cpu"), 2, body, kLong, /*bridged=*/true);
}

TEST(Channel, ARankThatNeverCallsIsATimeoutOverTheBridge) {
  std::atomic<bool> told = false;
  const auto body = [&told](Rank& rank) {
    rank.channel.create();
    if (rank.channel.index() == 1) return told.wait(false);
    std::vector<float> values(3, 1.0F);
    const Stream current(rank.device);
    try {
      rank.channel.wait(*rank.channel.submit(sum(values), &current));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), CONCORD_STATUS_TIMEOUT);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 is behind in group tp"));
    }
    EXPECT_EQ(values, std::vector<float>(3, 1.0F)) << "a failed call must not write its result";
    EXPECT_TRUE(rank.channel.failed());
    open(told);
  };
  run_ranks(open_platform("cpu"), 2, body, 300ms, /*bridged=*/true);
}

TEST(Channel, RanksThatWaitForALateOneAreHeldUpLongerThanItOnBothClocks) {
  std::array<CommunicationTime::Duration, 2> host{}, device{};
  run_ranks(open_platform("cpu"), 2, [&](Rank& rank) {
    rank.channel.create();
    EXPECT_EQ(rank.time->on_host() + rank.time->on_device(), 0ns);
    const auto index = static_cast<size_t>(rank.channel.index());
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) {
      if (index == 1) std::this_thread::sleep_for(10ms);
      std::vector<float> values(3, 1.0F);
      rank.channel.wait(*rank.channel.submit(sum(values), nullptr));
    }
    EXPECT_LE(rank.time->on_host(), std::chrono::steady_clock::now() - begin);
    host[index] = rank.time->on_host();
    device[index] = rank.time->on_device();
  });
  EXPECT_GT(host[0], host[1]);
  EXPECT_GT(device[0], device[1]);
  EXPECT_GT(host[1], 0ns);
  EXPECT_GT(device[1], 0ns);
}

TEST(Channel, CallsMadeBeforeTheOthersComeAreQueued) {
  std::atomic<bool> others_may_come = false;
  run_ranks(open_platform("cpu"), 3, [&](Rank& rank) {
    if (rank.channel.index() != 0) others_may_come.wait(false);
    std::vector<std::vector<float>> values;
    for (int i = 0; i < 5; ++i) values.emplace_back(4, static_cast<float>(i));
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (auto& each : values) calls.push_back(rank.channel.submit(sum(each), nullptr));
    if (rank.channel.index() == 0) {
      for (const auto& call : calls) EXPECT_FALSE(rank.channel.done(*call));
      EXPECT_FALSE(rank.channel.created());
      open(others_may_come);
    }
    rank.channel.wait(*calls.back());
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(values[static_cast<size_t>(i)], std::vector<float>(4, 3.0F * static_cast<float>(i)));
  });
}

TEST(Channel, KeepsWhatACallUsesUntilTheStreamThatSubmittedItIsBehindIt) {
  run_ranks(open_platform("cpu"), 2, [](Rank& rank) {
    rank.channel.create();
    std::atomic<bool> gate = false;
    std::vector<float> values(3, 1.0F);
    const Stream current(rank.device);
    const Stream other(rank.device);
    current.launch_host(&wait_for_gate, &gate);
    auto kept = std::make_shared<int>(7);
    const std::weak_ptr<int> watched = kept;
    ChannelCall call = sum(values);
    call.keep = std::move(kept);
    const auto pending = rank.channel.submit(std::move(call), &current);
    EXPECT_FALSE(watched.expired());
    rank.channel.order_after(*pending, other);
    EXPECT_FALSE(watched.expired()) << "memory freed here could be reused by the submitting stream at once";
    rank.channel.order_after(*pending, current);
    EXPECT_TRUE(watched.expired());
    open(gate);
    rank.channel.wait(*pending);
  });
}

TEST(Channel, ReleasesWhatNobodyWaitsFor) {
  run_ranks(open_platform("cpu"), 2, [](Rank& rank) {
    std::vector<float> values(3, 1.0F);
    auto kept = std::make_shared<int>(7);
    const std::weak_ptr<int> watched = kept;
    ChannelCall call = sum(values);
    call.keep = std::move(kept);
    rank.channel.submit(std::move(call), nullptr);
    while (!watched.expired()) std::this_thread::sleep_for(1ms);  // the watchdog's tick
    EXPECT_TRUE(rank.channel.created());  // takes the lock under which it was released, so the values are seen
    EXPECT_EQ(values, std::vector<float>(3, 2.0F));
  });
}

TEST(Channel, ARefusedCallLeavesTheOthersAlone) {
  run_ranks(open_platform("cpu"), 2, [](Rank& rank) {
    std::vector<float> values(3, 1.0F);
    ChannelCall bad = sum(values);
    bad.issue = [&values](const Communicator& comm, const Stream& stream) {
      comm.all_reduce(stream, values.data(), values.data(), -1, DType::kF32, ReduceOp::kSum);
    };
    const auto queued = rank.channel.submit(bad, nullptr);  // before there is a communicator
    EXPECT_THROW(rank.channel.wait(*queued), Error);
    EXPECT_THROW(rank.channel.submit(bad, nullptr), Error);
    rank.channel.wait(*rank.channel.submit(sum(values), nullptr));
    EXPECT_EQ(values, std::vector<float>(3, 2.0F));
  });
}

// The cpu plugin without timeouts: it does not report the capability, and its communicators wait forever.
struct Timeless {
  Timeless() : plugin(loader::open_plugin("cpu")) {
    for (const concord_capability& each : capabilities_of(plugin)) {
      if (std::string_view(each.name) != CONCORD_CAP_COMM_TIMEOUT) capabilities.push_back(each);
    }
    plugin.tables.core.capabilities = capabilities.data();
    plugin.tables.core.capability_count = static_cast<int64_t>(capabilities.size());
    original() = plugin.tables.comm.init;
    plugin.tables.comm.init = [](void* self, int32_t device, int32_t world, int32_t rank, const void* id, int64_t bytes,
                                 const concord_comm_config* config, concord_comm* out) {
      concord_comm_config patient = *config;
      patient.timeout_ms = 3600 * 1000;
      return original()(self, device, world, rank, id, bytes, &patient, out);
    };
  }
  using Init = decltype(concord_comm_table::init);
  static Init& original() {
    static Init init = nullptr;
    return init;
  }
  static std::vector<concord_capability> capabilities_of(const loader::Plugin& of) {
    return {of.tables.core.capabilities, of.tables.core.capabilities + of.tables.core.capability_count};
  }
  Platform platform() const { return Platform(plugin); }
  loader::Plugin plugin;
  std::vector<concord_capability> capabilities;
};

TEST(Channel, KeepsTheTimeWhereThePluginDoesNot) {
  const Timeless timeless;
  std::atomic<bool> told = false;
  run_ranks(
      timeless.platform(), 2,
      [&](Rank& rank) {
        rank.channel.create();
        if (rank.channel.index() == 1) return told.wait(false);
        std::vector<float> values(3, 1.0F);
        const auto call = rank.channel.submit(sum(values), nullptr);
        try {
          rank.channel.wait(*call);
          ADD_FAILURE() << "nothing was thrown";
        } catch (const Error& error) {
          EXPECT_EQ(error.status(), CONCORD_STATUS_TIMEOUT);
          EXPECT_THAT(error.what(), HasSubstr("all_reduce sum f32 x 3 (call 1) failed: not finished after 300 ms"));
          EXPECT_THAT(
              error.what(),
              HasSubstr("rank 1 is behind in group tp: it made no call and not call 1; the others are at call 1"));
        }
        EXPECT_TRUE(rank.channel.failed());
        EXPECT_THROW(rank.channel.submit(sum(values), nullptr), Error);
        open(told);
      },
      300ms);
}

TEST(Watchdog, RunsItsTasksUntilTheyAreRemoved) {
  Watchdog watchdog;
  std::atomic<int> first = 0, second = 0;
  const int owner_of_first = 0, owner_of_second = 0;
  watchdog.add(&owner_of_first, 1ms, [&] { ++first; });
  watchdog.add(&owner_of_second, 1ms, [&] { ++second; });
  while (first < 3 || second < 3) std::this_thread::sleep_for(1ms);
  watchdog.remove(&owner_of_first);
  const int before = first;
  const int other = second;
  while (second < other + 3) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(first, before);
  watchdog.stop();
  const int last = second;
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(second, last);
}

}  // namespace
}  // namespace concord
