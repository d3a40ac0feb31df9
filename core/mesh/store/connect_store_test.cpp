// connect_store: the store of a job, between threads that stand for its processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "core/mesh/store/rendezvous.h"
#include "core/mesh/store/sockets.h"
#include "core/mesh/store/store_client.h"
#include "core/mesh/store/store_server.h"
#include "platform/loader/error.h"
#include "tests/free_port.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr auto kLong = 60s;  // ends a hang; no verdict depends on it
constexpr int kLargeJob = 100;

// A port that is in use as long as this object lives, and never replies.
class TakenPort {
 public:
  TakenPort() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t length = sizeof address;
    if (bind(fd_, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd_, 8) != 0) std::abort();
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  ~TakenPort() { release(); }
  void release() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

using tests::free_port;

JobEnvironment job(int64_t rank, int64_t world, int port) {
  JobEnvironment result;
  result.rank = rank;
  result.world = world;
  result.master_port = port;
  result.source = JobSource::torchrun;
  return result;
}

template <class Body>
std::string error_of(concord_status status, Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(status_name(error.status()), status_name(status)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(ConnectStore, DoesWhatTheInterfaceSays) {
  const int port = free_port();
  const auto server = connect_store(job(0, 2, port), kLong);
  const auto client = connect_store(job(1, 2, port), kLong);
  const std::string bytes("\0a\xff\n", 4);
  server->set("key", bytes);
  EXPECT_EQ(client->get("key", kLong), bytes);
  EXPECT_EQ(client->add("count", 5), 5);
  EXPECT_EQ(server->add("count", -2), 3);
  EXPECT_EQ(server->get("count", kLong), "3");
  const std::vector<std::string> both = {"key", "count"};
  EXPECT_TRUE(client->check(both));
  EXPECT_EQ(client->get_all(both, kLong), (std::vector<std::string>{bytes, "3"}));
  EXPECT_FALSE(client->has("other"));
  EXPECT_TRUE(client->remove("key"));
  EXPECT_FALSE(server->has("key"));
  EXPECT_TRUE(client->check({}));
  EXPECT_THAT(error_of(CONCORD_STATUS_TIMEOUT, [&] { client->get("never", 20ms); }), HasSubstr("never"));
  EXPECT_EQ(client->add("count", 0), 3) << "still usable after a timeout";
}

TEST(ConnectStore, AWaitHoldsNobodyUp) {
  const int port = free_port();
  const auto server = connect_store(job(0, 2, port), kLong);
  const auto client = connect_store(job(1, 2, port), kLong);
  auto value = std::async(std::launch::async, [&] { return client->get("late", kLong); });
  std::this_thread::sleep_for(20ms);  // so that the other thread most likely waits by now
  EXPECT_EQ(client->add("count", 1), 1);
  client->set("late", "x");
  EXPECT_EQ(value.get(), "x");
}

TEST(ConnectStore, NoKeysAreThereWithoutARequest) {
  const std::shared_ptr<Store> store = connect_store(job(0, kLargeJob, free_port()), kLong);
  const int64_t before = store_requests();
  store->wait({}, kLong);
  EXPECT_TRUE(store->get_all({}, kLong).empty());
  EXPECT_TRUE(store->check({}));
  EXPECT_EQ(store_requests(), before);
}

// The server needs some time for a large value, and answers other requests meanwhile.
TEST(ConnectStore, ChangesOfAThreadHappenInOrderWhileOthersWait) {
  const int port = free_port();
  const std::shared_ptr<Store> store = connect_store(job(0, kLargeJob, port), kLong);
  const std::shared_ptr<Store> other = connect_store(job(1, kLargeJob, port), kLong);
  const std::string large(7 << 20, 'x');
  int missing = 0;
  for (int i = 0; i < 6; ++i) {
    const std::string end = "end" + std::to_string(i);
    const int64_t before = store_requests();
    if (i % 2 == 0) store->set("key", large);
    auto waiting = std::async(std::launch::async, [&] { store->wait({&end, 1}, kLong); });
    while (store_requests() < before + (i % 2 == 0 ? 2 : 1)) std::this_thread::yield();
    if (i % 2 == 1) store->set("key", large);
    if (i % 2 == 1) other->set(end, "");
    if (i % 2 == 1) waiting.wait();
    missing += store->has("key") ? 0 : 1;
    if (i % 2 == 0) other->set(end, "");
    waiting.get();
    EXPECT_TRUE(store->remove("key"));
  }
  EXPECT_EQ(missing, 0);
}

TEST(ConnectStore, ALateServerIsWaitedFor) {
  TakenPort port;
  port.release();
  auto client = std::async(std::launch::async, [&] { return connect_store(job(1, 2, port.port()), kLong); });
  std::this_thread::sleep_for(100ms);
  const auto server = connect_store(job(0, 2, port.port()), kLong);
  EXPECT_EQ(client.get()->add("count", 1), 1);
}

// The lines of /proc/net/tcp or tcp6 with a socket that listens at |port|: "0100007F" is 127.0.0.1.
std::vector<std::string> listeners(const char* table, int port) {
  std::ifstream file(table);
  std::vector<std::string> found;
  char wanted[8];
  std::snprintf(wanted, sizeof wanted, ":%04X", static_cast<unsigned>(port));
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    words >> number >> local >> remote >> state;
    if (state == "0A" && local.ends_with(wanted)) found.push_back(local.substr(0, local.find(':')));
  }
  return found;
}

TEST(ConnectStore, ListensAtTheAddressThatWasGivenAlone) {
  const int port = free_port();
  const auto store = connect_store(job(0, 2, port), std::chrono::seconds(30));
  EXPECT_EQ(listeners("/proc/net/tcp", port), std::vector<std::string>{"0100007F"});
  EXPECT_TRUE(listeners("/proc/net/tcp6", port).empty());
}

TEST(ConnectStore, AWorldOfOneNeedsNoPort) {
  const auto store = connect_store(job(0, 1, 0), kLong);
  EXPECT_EQ(store->add("count", 1), 1);
}

TEST(ConnectStore, APortInUseIsNamedWithWhatToDo) {
  const TakenPort port;
  EXPECT_THAT(error_of(CONCORD_STATUS_UNAVAILABLE, [&] { connect_store(job(0, 2, port.port()), kLong); }),
              AllOf(HasSubstr("port " + std::to_string(port.port())), HasSubstr("in use"), HasSubstr("MASTER_PORT")));
}

TEST(ConnectStore, AMasterThatNeverComesEndsTheWaitWithItsAddress) {
  const int port = free_port();
  EXPECT_THAT(error_of(CONCORD_STATUS_TIMEOUT, [&] { connect_store(job(3, 4, port), 100ms); }),
              AllOf(HasSubstr("rank 3 found no store at 127.0.0.1:" + std::to_string(port) + " within 100 ms"),
                    HasSubstr("refused"), HasSubstr("MASTER_ADDR")));
}

TEST(ConnectStore, AHostThatDoesNotExistIsNamed) {
  JobEnvironment nowhere = job(1, 2, 29500);
  nowhere.master_addr = "no-such-host.invalid";
  EXPECT_THAT(error_of(CONCORD_STATUS_TIMEOUT, [&] { connect_store(nowhere, 100ms); }),
              HasSubstr("'no-such-host.invalid' is not a known host"));
}

TEST(ConnectStore, AServerThatIsNoStoreEndsTheWait) {
  const TakenPort silent;
  EXPECT_THAT(error_of(CONCORD_STATUS_TIMEOUT, [&] { connect_store(job(1, 2, silent.port()), 500ms); }),
              HasSubstr("choose another MASTER_PORT"));
}

TEST(ConnectStore, AServerThatIsGoneIsALostPeer) {
  const int port = free_port();
  auto server = connect_store(job(0, 2, port), kLong);
  const auto client = connect_store(job(1, 2, port), kLong);
  client->add("count", 1);
  server.reset();
  EXPECT_THAT(error_of(CONCORD_STATUS_PEER_LOST, [&] { client->get("key", kLong); }), HasSubstr("no longer answers"));
}

// The store of torchrun's agent, which strangers can reach as well.
c10::intrusive_ptr<c10d::TCPStore> serve_agent_store() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

TEST(ConnectStore, UnderAnAgentRankZeroServesAndPublishesWhere) {
  const auto agent = serve_agent_store();
  JobEnvironment first = job(0, 2, agent->getPort());
  first.agent_store = true;
  first.token = "0123456789abcdef";
  JobEnvironment second = first;
  second.rank = 1;
  const std::string forged = "0123456789abcdef127.0.0.1|1";  // a seal of 16 digits, and a port without a listener
  agent->set("concord/0/store", std::vector<uint8_t>(forged.begin(), forged.end()));
  auto late = std::async(std::launch::async, [&] { return connect_store(second, kLong); });
  const auto store = connect_store(first, kLong);
  store->set("key", "value");
  EXPECT_EQ(late.get()->get("key", kLong), "value");
  EXPECT_FALSE(agent->check({"key"})) << "anyone could change it there";
}

TEST(ConnectStore, OnOneMachineWithoutATokenTheRanksMeetAtAUnixSocket) {
  const TakenPort port;  // no TCP port is needed
  JobEnvironment first = job(0, 2, port.port());
  first.local_world = 2;
  JobEnvironment second = first;
  second.rank = second.local_rank = 1;
  EXPECT_TRUE(uses_unix_socket(first));
  const auto server = connect_store(first, kLong);
  server->set("key", "value");
  EXPECT_EQ(connect_store(second, kLong)->get("key", kLong), "value");
  EXPECT_THAT(error_of(CONCORD_STATUS_UNAVAILABLE, [&] { connect_store(first, kLong); }), HasSubstr("in use"));
  first.token = "0123456789abcdef";
  EXPECT_FALSE(uses_unix_socket(first));
}

TEST(ConnectStore, ARankWithAnotherTokenIsRefusedAndSaysSo) {
  const int port = free_port();
  JobEnvironment first = job(0, 2, port), second = job(1, 2, port);
  first.token = "0123456789abcdef";
  second.token = "0123456789abcdeg";
  const auto server = connect_store(first, kLong);
  const std::string words = error_of(CONCORD_STATUS_UNAVAILABLE, [&] { connect_store(second, 1s); });
  EXPECT_THAT(words, AllOf(HasSubstr("authentication failed"), HasSubstr("CONCORD_JOB_TOKEN")));
  EXPECT_THAT(words, ::testing::Not(HasSubstr("0123456789abcde")));
  second.token.clear();
  EXPECT_THAT(error_of(CONCORD_STATUS_UNAVAILABLE, [&] { connect_store(second, 1s); }),
              HasSubstr("authentication failed"));
  second.token = first.token;
  EXPECT_EQ(connect_store(second, kLong)->add("count", 1), 1);
}

// The server makes room for new connections by dropping the oldest that has not authenticated.
TEST(ConnectStore, RankZeroKeepsItsOwnConnectionWhenStrangersConnect) {
  const int port = free_port();
  const auto store = connect_store(job(0, 2, port), kLong);
  const size_t more_than_it_keeps = StoreServer::Limits().strangers + 10;
  std::vector<UniqueFd> strangers;
  std::string reason;
  for (size_t i = 0; i < more_than_it_keeps; ++i) {
    strangers.push_back(connect_once("127.0.0.1", port, kLong, &reason));
    ASSERT_TRUE(strangers.back()) << reason;
  }
  pollfd oldest{strangers.front().get(), POLLRDHUP, 0};
  ASSERT_EQ(::poll(&oldest, 1, -1), 1) << "the server has counted them";
  EXPECT_EQ(store->add("count", 1), 1);
}

// The last rank is late. The number of requests that the others send meanwhile depends on how long they wait, which no
// test can fix: a few per quarter of a second, in which they look for errors of others.
TEST(ConnectStore, RanksThatWaitForTheLastOneDoNotFloodTheServer) {
  constexpr int kRanks = 256;
  const int port = free_port();
  const int64_t before = store_requests();
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> joining = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const bool is_last = rank == kRanks - 1;
      while (is_last && joining < kRanks - 1) std::this_thread::sleep_for(10ms);
      if (is_last) std::this_thread::sleep_for(300ms);
      const auto store = connect_store(job(rank, kRanks, port), kLong);
      ++joining;
      rendezvous(*store, {rank, kRanks, "a thread", {}}, kLong);
      exit_barrier(*store, {rank, kRanks, {}, {}}, kLong, [] { return false; });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  const double quarters = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 0.25;
  const double per_rank = static_cast<double>(store_requests() - before) / kRanks;
  EXPECT_LE(per_rank, 20 + 6 * quarters);
}

TEST(ConnectStore, ManyThreadsWaitForDifferentKeysAtTheSameTime) {
  const int port = free_port();
  const auto server = connect_store(job(0, 2, port), kLong);
  const auto client = connect_store(job(1, 2, port), kLong);
  std::vector<std::future<std::string>> values;
  for (int i = 0; i < 4; ++i) {
    values.push_back(std::async(std::launch::async, [&, i] { return client->get("key" + std::to_string(i), kLong); }));
  }
  for (int i = 3; i >= 0; --i) {
    server->set("key" + std::to_string(i), std::to_string(i));
    EXPECT_EQ(values[static_cast<size_t>(i)].get(), std::to_string(i));
  }
}

// ----------------------------------------------------------------------------------------------------- end_when_silent

int option(const UniqueFd& socket, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  EXPECT_EQ(::getsockopt(socket.get(), level, name, &value, &length), 0);
  return value;
}

TEST(EndWhenSilent, TheKernelProbesTheOtherMachineForThreeSeconds) {
  const TakenPort taken;
  std::string reason;
  const UniqueFd socket = connect_once("127.0.0.1", taken.port(), 10s, &reason);
  ASSERT_TRUE(socket) << reason;
  end_when_silent(socket);
  EXPECT_EQ(option(socket, SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(socket, IPPROTO_TCP, TCP_KEEPIDLE) + option(socket, IPPROTO_TCP, TCP_KEEPCNT), 3);
}

// Connecting to a full queue is like connecting to a machine that is gone: there is no reply.
TEST(EndWhenSilent, AMachineThatDoesNotAnswerIsUnreachable) {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(listener.get(), plain, length), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  ASSERT_EQ(::getsockname(listener.get(), plain, &length), 0);
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < 4; ++i) {  // the queue holds one or two
    sockets.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    static_cast<void>(::connect(sockets.back().get(), plain, length));
  }
  end_when_silent(sockets.back());
  pollfd entry{sockets.back().get(), POLLOUT, 0};
  ASSERT_EQ(::poll(&entry, 1, 60000), 1);
  EXPECT_EQ(option(sockets.back(), SOL_SOCKET, SO_ERROR), ETIMEDOUT);
}

}  // namespace
}  // namespace concord
