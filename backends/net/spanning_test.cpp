// Collectives over hosts, by value. Hosts are groups of threads of this process, so that sanitizers see both ends of a
// message; ranks of a host share memory as they do elsewhere. Messages between hosts go through UCX, of which
// sanitizers see nothing, and through queues of this process.
#include "backends/net/spanning.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "backends/net/control.h"
#include "backends/shm/communicator.h"
#include "platform/sdk/plugin.hpp"

namespace concord::net {
namespace {

// --------------------------------------------------------------------------------------------------------------- ports

// Messages of all ranks that have not been received yet, by sender, receiver and lane.
class Switchboard {
 public:
  struct Message {
    Header header;
    std::vector<std::byte> data;
  };
  using Route = std::tuple<int32_t, int32_t, Lane>;

  void put(const Route& route, Message message) {
    const std::lock_guard lock(mutex_);
    messages_[route].push_back(std::move(message));
  }
  std::optional<Message> take(const Route& route) {
    const std::lock_guard lock(mutex_);
    std::deque<Message>& queue = messages_[route];
    if (queue.empty()) return std::nullopt;
    Message message = std::move(queue.front());
    queue.pop_front();
    return message;
  }

 private:
  std::mutex mutex_;
  std::map<Route, std::deque<Message>> messages_;
};

class LocalPort final : public Port {
 public:
  LocalPort(int32_t rank, Switchboard& board) : rank_(rank), board_(board) {}

  void retire() override {}
  const std::byte* address() const override { return nullptr; }
  size_t address_bytes() const override { return 0; }
  void set_address(int32_t, const std::byte*, size_t) override {}
  void drive(bool) override {}

  void send(int32_t peer, Lane lane, const Header& header, const void* data, int64_t bytes,
            Transfer* transfer) override {
    const auto* const from = static_cast<const std::byte*>(data);
    board_.put({rank_, peer, lane}, {header, {from, from + bytes}});
    *transfer = {};
    transfer->state = Transfer::State::kDone;
  }
  void receive(int32_t peer, Lane lane, void* data, int64_t bytes, Transfer* transfer) override {
    *transfer = {};
    waiting_[{peer, rank_, lane}].push_back({static_cast<std::byte*>(data), bytes, transfer});
  }
  void flush(int32_t, Transfer* transfer) override {
    *transfer = {};
    transfer->state = Transfer::State::kDone;
  }

  void progress(int milliseconds) override {
    bool moved = false;
    for (auto& [route, receives] : waiting_) {
      while (!receives.empty()) {
        std::optional<Switchboard::Message> message = board_.take(route);
        if (!message) break;
        deliver(receives.front(), *message);
        receives.pop_front();
        moved = true;
      }
    }
    if (!moved && milliseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

 private:
  struct Receive {
    std::byte* data;
    int64_t bytes;
    Transfer* transfer;
  };
  static void deliver(const Receive& receive, const Switchboard::Message& message) {
    const auto bytes = static_cast<int64_t>(message.data.size());
    if (bytes == receive.bytes) std::copy(message.data.begin(), message.data.end(), receive.data);
    *receive.transfer = {Transfer::State::kDone, message.header, bytes, ""};
  }

  const int32_t rank_;
  Switchboard& board_;
  std::map<Switchboard::Route, std::deque<Receive>> waiting_;
};

// --------------------------------------------------------------------------------------------------------------- ranks

constexpr std::chrono::milliseconds kPatience{60000};  // ends a hang; no verdict depends on it

using UniqueId = std::vector<std::byte>;

enum class Through { queues, ucx };

std::unique_ptr<Port> open_port_of(Through through, int32_t rank, int32_t world, Switchboard& board) {
  if (through == Through::queues) return std::make_unique<LocalPort>(rank, board);
  const auto open = reinterpret_cast<OpenPort>(::dlsym(::dlopen(NET_MODULE, RTLD_NOW | RTLD_LOCAL), kOpenPort));
  char error[256] = {};
  std::unique_ptr<Port> port(open({rank, world, 77, "", false}, error, sizeof error));
  if (port == nullptr) throw std::runtime_error(error);
  return port;
}

// Like net::connect: ranks exchange the addresses of their ports, which answer from then on.
void introduce(Line& line, Port& port, int32_t rank) {
  const std::string own(reinterpret_cast<const char*>(port.address()), port.address_bytes());
  const std::vector<std::string> all = line.exchange(own);
  for (int32_t r = 0; r < static_cast<int32_t>(all.size()); ++r) {
    const std::string& address = all[static_cast<size_t>(r)];
    if (r != rank) port.set_address(r, reinterpret_cast<const std::byte*>(address.data()), address.size());
  }
  port.drive(false);
}

// Runs |body| on one thread per rank, each with a communicator; |hosts| says on which host each rank is.
void run_over_hosts(Through through, const std::vector<uint64_t>& hosts, const std::function<void(Spanning&)>& body) {
  const HostMap map = map_hosts(hosts);
  const auto world = static_cast<int32_t>(hosts.size());
  UniqueId id(shm::kUniqueIdBytes);
  create_id(id.data());
  std::vector<UniqueId> local_ids;  // one per host: its ranks meet nobody else
  for (int32_t h = 0; h < map.host_count(); ++h) {
    local_ids.emplace_back(shm::kUniqueIdBytes);
    shm::create_unique_id(local_ids.back().data(), shm::kUniqueIdBytes);
  }
  Switchboard board;
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const shm::Options options{.name = "hosts", .timeout = kPatience};
        auto line = Line::open({world, rank, id.data(), "hosts", kPatience});
        std::unique_ptr<Port> port = open_port_of(through, rank, world, board);
        introduce(*line, *port, rank);
        const auto at = static_cast<size_t>(rank), host = static_cast<size_t>(map.host[at]);
        auto local = shm::Communicator::connect(map.size_of(map.host[at]), map.place[at], local_ids[host].data(),
                                                shm::kUniqueIdBytes, options);
        Spanning spanning(rank, map, std::move(local), std::move(port), std::move(line), options);
        body(spanning);
        if (spanning.error(nullptr) == CONCORD_STATUS_OK) spanning.barrier();  // nobody leaves before all are done
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
}

// Two hosts with two ranks each, with two and one, with alternating ranks, with one each.
const std::vector<std::vector<uint64_t>> kHosts = {{5, 5, 3, 3}, {5, 5, 3}, {5, 3, 5}, {5, 3}};

constexpr int64_t kCounts[] = {3, 30'000};  // through the leaders, and through a chain if the hosts are even

std::vector<int32_t> values_of(int32_t rank, int64_t count, int32_t seed = 0) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i) * 7 + rank * 1'000'003 + seed;
  return values;
}

constexpr concord_dtype kInt = CONCORD_DTYPE_I32;

class SpanningTest : public ::testing::TestWithParam<Through> {};

TEST_P(SpanningTest, SumsAreThoseOfAllRanks) {
  for (const auto& hosts : kHosts) {
    run_over_hosts(GetParam(), hosts, [](Spanning& comm) {
      for (const int64_t count : kCounts) {
        const std::vector<int32_t> own = values_of(comm.rank(), count);
        std::vector<int32_t> expected(own.size()), sum(own.size()), part(own.size());
        for (int32_t r = 0; r < comm.size(); ++r) {
          const std::vector<int32_t> its = values_of(r, count);
          for (size_t i = 0; i < its.size(); ++i) expected[i] += its[i];
        }
        comm.all_reduce(own.data(), sum.data(), count, kInt, CONCORD_REDUCE_SUM);
        EXPECT_EQ(sum, expected) << count;
        const int32_t root = comm.size() - 1;
        comm.reduce(own.data(), comm.rank() == root ? part.data() : nullptr, count, kInt, CONCORD_REDUCE_SUM, root);
        if (comm.rank() == root) {
          EXPECT_EQ(part, expected) << count;
        }
        const int64_t each = count / comm.size();
        if (each == 0) continue;
        std::vector<int32_t> block(static_cast<size_t>(each));
        comm.reduce_scatter(own.data(), block.data(), each, kInt, CONCORD_REDUCE_SUM);
        const auto begin = expected.begin() + comm.rank() * each;
        EXPECT_EQ(block, std::vector<int32_t>(begin, begin + each)) << count;
      }
    });
  }
}

// Uneven hosts have no chain: their leaders reduce 16 MiB of all ranks together at a time, here in two parts.
TEST_P(SpanningTest, ASumBeyondWhatLeadersReduceAtATimeIsWhole) {
  run_over_hosts(GetParam(), {5, 5, 3}, [](Spanning& comm) {
    constexpr int64_t kCount = (16 << 20) / 3 / 4 + 1000;
    std::vector<int32_t> sum = values_of(comm.rank(), kCount);
    comm.all_reduce(sum.data(), sum.data(), kCount, kInt, CONCORD_REDUCE_SUM);
    int64_t wrong = 0;
    for (int32_t i = 0; i < kCount; ++i) wrong += sum[static_cast<size_t>(i)] != 3 * 7 * i + (0 + 1 + 2) * 1'000'003;
    EXPECT_EQ(wrong, 0);
  });
}

TEST_P(SpanningTest, CopiesAreThoseOfTheRanksThatTheyComeFrom) {
  for (const auto& hosts : kHosts) {
    run_over_hosts(GetParam(), hosts, [](Spanning& comm) {
      for (const int64_t count : kCounts) {
        const std::vector<int32_t> own = values_of(comm.rank(), count);
        std::vector<int32_t> all(own.size() * static_cast<size_t>(comm.size())), expected;
        for (int32_t r = 0; r < comm.size(); ++r) {
          const std::vector<int32_t> its = values_of(r, count);
          expected.insert(expected.end(), its.begin(), its.end());
          std::vector<int32_t> received(own.size());
          comm.broadcast(r == comm.rank() ? own.data() : nullptr, received.data(), count, kInt, r);
          EXPECT_EQ(received, its) << "of rank " << r;
        }
        comm.all_gather(own.data(), all.data(), count, kInt);
        EXPECT_EQ(all, expected) << count;
      }
    });
  }
}

// Rank s sends 10 s + r + 1 elements to rank r, from places in reverse order of the ranks.
TEST_P(SpanningTest, EveryElementOfAnUnevenExchangeArrivesInItsPlace) {
  const auto count = [](int32_t from, int32_t to) { return int64_t{10} * from + to + 1; };
  for (const auto& hosts : kHosts) {
    run_over_hosts(GetParam(), hosts, [&](Spanning& comm) {
      const auto world = static_cast<size_t>(comm.size());
      std::vector<int64_t> sizes(world), places(world), sizes_in(world), places_in(world);
      int64_t sent = 0, got = 0;
      for (int32_t r = comm.size() - 1; r >= 0; --r) {  // the last rank's come first
        const auto at = static_cast<size_t>(r);
        sizes[at] = count(comm.rank(), r);
        sizes_in[at] = count(r, comm.rank());
        places[at] = sent;
        places_in[at] = got;
        sent += sizes[at];
        got += sizes_in[at];
      }
      std::vector<int32_t> send(static_cast<size_t>(sent)), received(static_cast<size_t>(got)),
          expected(received.size());
      for (int32_t r = 0; r < comm.size(); ++r) {
        const auto at = static_cast<size_t>(r);
        const auto out = values_of(comm.rank(), sizes[at], 31 * r), in = values_of(r, sizes_in[at], 31 * comm.rank());
        std::copy(out.begin(), out.end(), send.begin() + places[at]);
        std::copy(in.begin(), in.end(), expected.begin() + places_in[at]);
      }
      comm.all_to_all_v(send.data(), sizes.data(), places.data(), received.data(), sizes_in.data(), places_in.data(),
                        kInt);
      EXPECT_EQ(received, expected);
    });
  }
}

TEST_P(SpanningTest, MessagesBetweenRanksArriveInsideAndAcrossHosts) {
  for (const auto& hosts : kHosts) {
    run_over_hosts(GetParam(), hosts, [](Spanning& comm) {
      constexpr int64_t kCount = 10'000;
      std::vector<std::vector<int32_t>> sent, received(static_cast<size_t>(comm.size()));
      std::vector<concord_p2p_item> items;
      for (int32_t r = 0; r < comm.size(); ++r) sent.push_back(values_of(comm.rank(), kCount, r));
      for (int32_t r = 0; r < comm.size(); ++r) {
        if (r == comm.rank()) continue;
        received[static_cast<size_t>(r)].resize(kCount);
        items.push_back({CONCORD_P2P_SEND, r, sent[static_cast<size_t>(r)].data(), kCount, kInt, 0});
        items.push_back({CONCORD_P2P_RECV, r, received[static_cast<size_t>(r)].data(), kCount, kInt, 0});
      }
      comm.batch_p2p(items);
      for (int32_t r = 0; r < comm.size(); ++r) {
        if (r != comm.rank()) {
          EXPECT_EQ(received[static_cast<size_t>(r)], values_of(r, kCount, comm.rank()));
        }
      }
    });
  }
}

// A rank aborts the communicator from another thread while the others wait for it, on its host and on the other one.
TEST_P(SpanningTest, AllRanksLearnOfAnAbort) {
  run_over_hosts(GetParam(), {5, 5, 3}, [](Spanning& comm) {
    if (comm.rank() == 1) std::thread([&comm] { comm.abort(); }).join();
    try {
      comm.barrier();
      ADD_FAILURE() << "rank " << comm.rank() << " was not told";
    } catch (const sdk::Failure& failure) {
      EXPECT_EQ(failure.status(), CONCORD_STATUS_ABORTED) << failure.what();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, SpanningTest, ::testing::Values(Through::queues, Through::ucx), [](const auto& through) {
  return through.param == Through::queues ? "ThroughQueues" : "ThroughUcx";
});

}  // namespace
}  // namespace concord::net
