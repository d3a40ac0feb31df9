// Messages between ports, lines between ranks, and addresses. Ranks are threads or ports of one process.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "backends/net/control.h"
#include "backends/net/hosts.h"
#include "backends/net/id.h"
#include "backends/net/source_filter.h"
#include "backends/net/transport.h"
#include "backends/shm/communicator.h"
#include "platform/base/sanitizer.hpp"
#include "platform/sdk/plugin.hpp"

// Read by the thread sanitizer. UCX destroys a lock in its destructor while its own thread may still read it: both ends
// of that race are in libucs, which is not instrumented.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:libucs.so\n"; }

namespace concord::net {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
constexpr milliseconds kLong{60000};  // ends a hang; no verdict depends on it

// --------------------------------------------------------------------------------------------------------------- ports

std::unique_ptr<Port> open_test_port(int32_t rank, uint64_t key, std::span<const Address> sources = {}) {
  void* const module = ::dlopen(NET_MODULE, RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) ADD_FAILURE() << ::dlerror();
  const auto open = reinterpret_cast<OpenPort>(::dlsym(module, kOpenPort));
  char error[256] = {};
  std::unique_ptr<Port> port(open({rank, 2, key, "", false, sources}, error, sizeof error));
  EXPECT_NE(port, nullptr) << error;
  return port;
}

// Two ports that know each other, of which this test drives both.
struct Pair {
  explicit Pair(uint64_t key_of_second = 7) {
    ports.push_back(open_test_port(0, 7));
    ports.push_back(open_test_port(1, key_of_second));
    for (int32_t r = 0; r < 2; ++r) {
      Port& other = *ports[static_cast<size_t>(1 - r)];
      ports[static_cast<size_t>(r)]->set_address(1 - r, other.address(), other.address_bytes());
    }
  }
  void move_until(const Transfer& transfer, milliseconds patience = kLong) {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (transfer.state == Transfer::State::kPending && std::chrono::steady_clock::now() < end) {
      for (auto& port : ports) port->progress(1);
    }
  }
  void settle() {
    for (int32_t r = 0; r < 2; ++r) {
      Transfer flushed;
      ports[static_cast<size_t>(r)]->flush(1 - r, &flushed);
      move_until(flushed);
    }
  }
  ~Pair() { settle(); }

  std::vector<std::unique_ptr<Port>> ports;
};

TEST(PortTest, MessagesOfALaneArriveInOrderAndWhole) {
  Pair pair;
  constexpr int kMessages = 5;
  std::vector<std::vector<int>> sent;
  std::vector<std::vector<int>> received;
  std::vector<Transfer> transfers(2 * kMessages);
  for (int i = 0; i < kMessages; ++i) {  // one fragment, several, none
    std::vector<int>& values = sent.emplace_back(static_cast<size_t>(i == 3 ? 0 : 1 + i * 40000));
    std::iota(values.begin(), values.end(), 1000 * i);
    received.emplace_back(values.size(), -1);
  }
  const auto bytes = [&](int i) { return static_cast<int64_t>(sent[static_cast<size_t>(i)].size() * sizeof(int)); };
  for (int i = 0; i < kMessages; ++i) {
    const auto at = static_cast<size_t>(i);
    pair.ports[0]->send(1, Lane::kCollectives, {{at, 9}}, sent[at].data(), bytes(i), &transfers[at]);
    if (i == 1) {  // another lane has its own order
      Transfer other;
      pair.ports[0]->send(1, Lane::kPointToPoint, {{77, 0}}, nullptr, 0, &other);
      pair.move_until(other);
    }
  }
  for (int i = 0; i < kMessages; ++i) {
    const auto at = static_cast<size_t>(i);
    Transfer& transfer = transfers[kMessages + at];
    pair.ports[1]->receive(0, Lane::kCollectives, received[at].data(), bytes(i), &transfer);
    pair.move_until(transfer);
    EXPECT_EQ(transfer.state, Transfer::State::kDone);
    EXPECT_EQ(transfer.header.words[0], at);
    EXPECT_EQ(received[at], sent[at]);
  }
  Transfer other;
  pair.ports[1]->receive(0, Lane::kPointToPoint, nullptr, 0, &other);
  pair.move_until(other);
  EXPECT_EQ(other.header.words[0], 77u);
  for (int i = 0; i < kMessages; ++i) pair.move_until(transfers[static_cast<size_t>(i)]);
}

TEST(PortTest, AMessageOfAnotherLengthIsToldButNotDelivered) {
  Pair pair;
  const int sent[3] = {1, 2, 3};
  int received[2] = {-1, -1};
  Transfer sending;
  Transfer receiving;
  pair.ports[1]->receive(0, Lane::kCollectives, received, sizeof received, &receiving);
  pair.ports[0]->send(1, Lane::kCollectives, {{5, 6}}, sent, sizeof sent, &sending);
  pair.move_until(receiving);
  EXPECT_EQ(receiving.state, Transfer::State::kDone);
  EXPECT_EQ(receiving.bytes, static_cast<int64_t>(sizeof sent));
  EXPECT_EQ(receiving.header.words[1], 6u);
  EXPECT_EQ(received[0], -1);
  pair.move_until(sending);
}

// A flush costs an answer of the peer's, for which a reduction would wait after every slice.
TEST(PortTest, OnlyMessagesThatWereCopiedNeedAFlush) {
  Pair pair;
  const std::vector<std::byte> sent(300000, std::byte{7});
  std::vector<std::byte> received(sent.size());
  const auto pass = [&](size_t bytes) {
    Transfer sending;
    Transfer receiving;
    pair.ports[1]->receive(0, Lane::kCollectives, received.data(), static_cast<int64_t>(bytes), &receiving);
    pair.ports[0]->send(1, Lane::kCollectives, {}, sent.data(), static_cast<int64_t>(bytes), &sending);
    pair.move_until(sending);
    pair.move_until(receiving);
  };
  pass(sent.size());
  EXPECT_EQ(received, sent);
  Transfer flush;
  pair.ports[0]->flush(1, &flush);
  EXPECT_EQ(flush.state, Transfer::State::kDone);
  pass(1);
  pair.ports[0]->flush(1, &flush);
  EXPECT_EQ(flush.state, Transfer::State::kPending);
  pair.move_until(flush);
  EXPECT_EQ(flush.state, Transfer::State::kDone);
}

TEST(PortTest, MessagesOfAnotherCommunicatorAreDropped) {
  Pair strangers(8);
  int value = 3;
  int received = -1;
  Transfer sending;
  Transfer receiving;
  strangers.ports[1]->receive(0, Lane::kCollectives, &received, sizeof received, &receiving);
  strangers.ports[0]->send(1, Lane::kCollectives, {}, &value, sizeof value, &sending);
  strangers.move_until(sending);
  strangers.settle();
  strangers.move_until(receiving, milliseconds(200));
  EXPECT_EQ(receiving.state, Transfer::State::kPending);
  EXPECT_EQ(received, -1);
}

// --------------------------------------------------------------------------------------------------------------- lines

using Id = std::vector<std::byte>;

std::vector<std::unique_ptr<Line>> open_lines(
    const Id& id, int32_t world, const Line::OnFailure& on_failure = [](concord_status, const std::string&) {}) {
  std::vector<std::unique_ptr<Line>> lines;
  for (int32_t r = 0; r < world; ++r) lines.push_back(Line::open({world, r, id.data(), "lines", kLong}));
  std::vector<std::thread> threads;  // every line has heard of the others afterwards
  for (auto& line : lines) {
    threads.emplace_back([&line] { EXPECT_EQ(line->exchange("here").size(), 3u); });
  }
  for (auto& thread : threads) thread.join();
  for (auto& line : lines) line->watch(on_failure);
  return lines;
}

Id new_net_id() {
  Id id(shm::kUniqueIdBytes);
  create_id(id.data());
  return id;
}

void wait_for(const std::atomic<int>& number, int value) {
  for (auto end = std::chrono::steady_clock::now() + kLong; number < value && std::chrono::steady_clock::now() < end;) {
    std::this_thread::sleep_for(milliseconds(1));
  }
}

TEST(LineTest, RanksPartWhenAllHaveLeft) {
  auto lines = open_lines(new_net_id(), 3);
  std::atomic<int> parted{0};
  const auto count = [&] { ++parted; };
  Line::part(std::move(lines[0]), count);
  Line::part(std::move(lines[1]), count);
  while (!lines[2]->has_left(0) || !lines[2]->has_left(1)) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(parted, 0);  // rank 2 may still send
  Line::part(std::move(lines[2]), count);
  wait_for(parted, 3);
  EXPECT_EQ(parted, 3);
}

TEST(LineTest, AStrangerWithoutTheIdIsNotAdmitted) {
  const Id id = new_net_id();
  Id other = id;
  other[0] ^= std::byte{1};  // the same address
  auto stranger = Line::open({3, 0, other.data(), "stranger", kLong});
  try {
    stranger->exchange("let me in");
    ADD_FAILURE() << "it was let in";
  } catch (const sdk::Failure& failure) {
    EXPECT_EQ(failure.status(), CONCORD_STATUS_PEER_LOST) << failure.what();  // at once: it was not left to wait
  }
  open_lines(id, 3);  // its rank is not taken
}

// Runs in a child process, whose listener has the token from the beginning. Returns 0 on success.
int admits_the_token_only() {
  ::setenv("CONCORD_JOB_TOKEN", "the token of the job", 1);
  const Id id = new_net_id();
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    ::setenv("CONCORD_JOB_TOKEN", "the token of another", 1);
    try {
      Line::open({3, 1, id.data(), "stranger", kLong})->exchange("let me in");
      ::_exit(1);
    } catch (const sdk::Failure& failure) {
      ::_exit(failure.status() == CONCORD_STATUS_PEER_LOST ? 0 : 2);
    }
  }
  int status = 0;
  ::waitpid(stranger, &status, 0);
  if (status != 0) return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
  open_lines(id, 3);  // the rank that it has claimed is not taken
  return ::testing::Test::HasFailure() ? 4 : 0;
}

TEST(LineTest, AStrangerWithTheIdButWithoutTheTokenIsNotAdmitted) {
  if (CONCORD_UNDER_TSAN) GTEST_SKIP() << "the thread sanitizer starts no threads in a forked process";
  const pid_t child = ::fork();
  if (child == 0) ::_exit(admits_the_token_only());
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
}

TEST(LineTest, WhoClaimsARankOfACompleteCommunicatorIsRefusedAndTheOthersGoOn) {
  const Id id = new_net_id();
  std::atomic<int> failures{0}, parted{0};
  auto lines = open_lines(id, 3, [&](concord_status, const std::string&) { ++failures; });
  try {
    Line::open({3, 1, id.data(), "second", kLong})->exchange("here");
    ADD_FAILURE() << "there were two of rank 1";
  } catch (const sdk::Failure& failure) {
    EXPECT_EQ(failure.status(), CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_THAT(failure.what(), HasSubstr("same rank"));
  }
  for (auto& line : lines) Line::part(std::move(line), [&] { ++parted; });
  wait_for(parted, 3);
  EXPECT_EQ(parted, 3);
  EXPECT_EQ(failures, 0);
}

// Ranks that come after them are accepted, since the oldest have been dropped by then: the listener accepts in order.
TEST(LineTest, SilentConnectionsKeepNoRankOutAndAreLimited) {
  const Id id = new_net_id();
  const auto where = Where::read(id.data());
  ASSERT_TRUE(where);
  std::vector<UniqueFd> silent;
  int error = 0;
  for (int i = 0; i < 300; ++i) silent.push_back(connect_to(where->addresses[0], where->port, kLong, &error));
  open_lines(id, 3);
  int dropped = 0;
  for (const UniqueFd& socket : silent) {
    char greeting[64];
    if (::recv(socket.get(), greeting, sizeof greeting, MSG_DONTWAIT) <= 0 && errno == EAGAIN) continue;
    if (::recv(socket.get(), greeting, sizeof greeting, MSG_DONTWAIT) == 0) ++dropped;
  }
  EXPECT_GE(dropped, 300 + 1 - 256);
  EXPECT_LT(dropped, 256) << "the ranks have waited until the first ones timed out";
}

// ------------------------------------------------------------------------------------------------------- source filter

constexpr Address v4(unsigned char a, unsigned char b, unsigned char c, unsigned char d) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d};
}

// Whether a connection from |source| to |listener|, both on this machine, is established: over loopback the kernel has
// answered, or dropped the packet, when connect returns.
bool connects(int listener, const Address& source) {
  sockaddr_in from{}, to{};
  socklen_t length = sizeof to;
  from.sin_family = AF_INET;
  std::memcpy(&from.sin_addr, source.data() + 12, 4);
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&to), &length) != 0) ADD_FAILURE();
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&from), sizeof from), 0);
  static_cast<void>(::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), length));
  pollfd wanted{socket.get(), POLLOUT, 0};
  return ::poll(&wanted, 1, 200) == 1 && (wanted.revents & POLLERR) == 0;
}

TEST(SourceFilterTest, TakesConnectionsFromTheGivenAddressesOnly) {
  uint16_t port = 0;
  const UniqueFd listener = listen_on(v4(127, 0, 0, 1), &port);
  EXPECT_TRUE(connects(listener.get(), v4(127, 0, 0, 7)));
  const Address two[] = {v4(10, 1, 2, 3), v4(127, 0, 0, 2)};
  ASSERT_TRUE(admit_only(listener.get(), two));
  EXPECT_TRUE(connects(listener.get(), v4(127, 0, 0, 2)));
  EXPECT_FALSE(connects(listener.get(), v4(127, 0, 0, 1)));
  EXPECT_FALSE(connects(listener.get(), v4(127, 0, 0, 7)));
}

TEST(SourceFilterTest, ManyAddressesAreWidenedToTheirNetworks) {
  uint16_t port = 0;
  const UniqueFd listener = listen_on(v4(127, 0, 0, 1), &port);
  std::vector<Address> many;
  for (int i = 0; i < 300; ++i)
    many.push_back(v4(127, 9, static_cast<unsigned char>(i / 250), static_cast<unsigned char>(i % 250)));
  for (unsigned char i = 0; i < 200; ++i) many.push_back({0xfd, 1, 2, i, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, i});
  ASSERT_TRUE(admit_only(listener.get(), many));
  EXPECT_TRUE(connects(listener.get(), v4(127, 9, 1, 249)));
  EXPECT_FALSE(connects(listener.get(), v4(127, 9, 2, 1)));
  EXPECT_FALSE(connects(listener.get(), v4(127, 0, 0, 1)));
}

TEST(SourceFilterTest, AddressesOfIPv6AreComparedWhole) {
  Address local{}, other{};
  local[15] = 1;
  other[14] = 1;
  uint16_t port = 0;
  UniqueFd listener;
  try {
    listener = listen_on(local, &port);
  } catch (const sdk::Failure&) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  int error = 0;
  ASSERT_TRUE(admit_only(listener.get(), {&other, 1}));
  EXPECT_FALSE(connect_to(local, port, milliseconds(200), &error));
  ASSERT_TRUE(admit_only(listener.get(), {&local, 1}));
  EXPECT_TRUE(connect_to(local, port, kLong, &error));
}

std::set<int> listening_sockets() {
  std::set<int> found;
  for (int number = 0; number < 1024; ++number) {
    sockaddr_in own{};
    socklen_t length = sizeof own;
    int listens = 0;
    socklen_t bytes = sizeof listens;
    if (::getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) continue;
    if (::getsockname(number, reinterpret_cast<sockaddr*>(&own), &length) == 0 && own.sin_family == AF_INET) {
      found.insert(number);
    }
  }
  return found;
}

// Opens a port for peers at |sources|, and returns whether this machine can connect to any of its sockets.
bool is_reached(std::span<const Address> sources) {
  const std::set<int> before = listening_sockets();
  const auto port = open_test_port(0, 7, sources);
  size_t opened = 0, reached = 0;
  for (const int listener : listening_sockets()) {
    if (before.contains(listener)) continue;
    sockaddr_in own{};
    socklen_t length = sizeof own;
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&own), &length);
    const auto* bytes = reinterpret_cast<const unsigned char*>(&own.sin_addr);
    ++opened;
    if (connects(listener, v4(bytes[0], bytes[1], bytes[2], bytes[3]))) ++reached;
  }
  EXPECT_GT(opened, 0u);
  return reached > 0;
}

TEST(PortTest, UcxTakesConnectionsFromTheHostsOfTheJobOnly) {
  const Address elsewhere = v4(192, 0, 2, 1);  // of documentation
  EXPECT_FALSE(is_reached({&elsewhere, 1}));
  std::vector<Address> here = source_addresses();
  here.push_back(v4(127, 0, 0, 1));
  EXPECT_TRUE(is_reached(here));
}

// ----------------------------------------------------------------------------------------------------------- addresses

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value, 1);
  }
  ~Variable() { before_.empty() ? ::unsetenv(name_) : ::setenv(name_, before_.c_str(), 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::string before_;
};

TEST(NetworkTest, ListensWhereItIsTold) {
  const Variable variable("CONCORD_CPU_INTERFACE", "lo");
  const Network network = own_network();
  EXPECT_TRUE(network.chosen);
  EXPECT_EQ(network.interface, "lo");
  ASSERT_TRUE(network.address);
  EXPECT_EQ(Where::here(1).text(), to_text(*network.address) + " port 1");
  uint16_t port = 0;
  const UniqueFd listener = listen_on(network.address, &port);
  int error = 0;
  EXPECT_TRUE(connect_to(*network.address, port, milliseconds(1000), &error));
  constexpr Address kOtherLoopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 2};
  EXPECT_FALSE(connect_to(kOtherLoopback, port, milliseconds(1000), &error));
}

TEST(NetworkTest, AMasterOnThisHostIsReachedByLoopbackAlone) {
  const Variable variable("MASTER_ADDR", "127.0.0.1");
  EXPECT_EQ(Where::here(2).text(), "127.0.0.1 port 2");
}

TEST(NetworkTest, AJobsOwnMasterCountsBeforeTheVariable) {
  const Variable variable("MASTER_ADDR", "no-such-host.invalid");
  concord_host host{};
  host.config = [](void*, const char* name) { return std::strcmp(name, "comm.master") == 0 ? "127.0.0.1" : nullptr; };
  sdk::host_slot() = &host;
  EXPECT_EQ(Where::here(3).text(), "127.0.0.1 port 3");
  sdk::host_slot() = nullptr;
}

TEST(NetworkTest, AnUnknownInterfaceIsRefusedWithThoseThatThereAre) {
  const Variable variable("CONCORD_CPU_INTERFACE", "eth77");
  try {
    own_network();
    ADD_FAILURE() << "eth77 was taken";
  } catch (const sdk::Failure& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("\"eth77\""));
    EXPECT_THAT(failure.what(), HasSubstr("lo (127.0.0.1)"));
  }
}

TEST(HostsTest, RanksAreMappedInOrder) {
  const uint64_t even[] = {5, 5, 3, 3};
  const HostMap map = map_hosts(even);
  EXPECT_EQ(map.host, (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(map.place, (std::vector<int32_t>{0, 1, 0, 1}));
  EXPECT_TRUE(map.even && map.contiguous);
  const uint64_t mixed[] = {5, 3, 5};
  const HostMap other = map_hosts(mixed);
  EXPECT_FALSE(other.contiguous);
  EXPECT_FALSE(other.even);
  EXPECT_EQ(other.ranks, (std::vector<std::vector<int32_t>>{{0, 2}, {1}}));
}

}  // namespace
}  // namespace concord::net
