// StoreServer: processes without the job's token cannot affect it; its limits.
#include "core/mesh/store/store_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "core/mesh/store/sockets.h"
#include "core/mesh/store/store_client.h"

namespace concord {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr auto kLong = 60s;  // ends a hang; no verdict depends on it
const std::string kToken = "the token of this test";
const std::string kHost = "127.0.0.1";

class Served : public ::testing::Test {
 protected:
  void serve(const StoreServer::Limits& limits = {}) {
    Listener listener = listen_on(kHost, 0);
    ASSERT_TRUE(listener.socket);
    port_ = own_port(listener.socket);
    server_ = std::make_unique<StoreServer>(std::move(listener.socket), kToken, limits);
  }
  UniqueFd connect() const {
    std::string reason;
    UniqueFd socket = connect_once(kHost, port_, kLong, &reason);
    EXPECT_TRUE(socket) << reason;
    return socket;
  }
  std::unique_ptr<StoreClient> join(const std::string& token = kToken) const {
    return std::make_unique<StoreClient>(connect(), token, "the test's server", kLong);
  }
  // Sends |bytes| until all are sent or the server has closed. Returns all bytes received until it closes.
  static std::string talk(const UniqueFd& socket, const std::string& bytes) {
    std::string heard;
    for (size_t sent = 0;;) {
      pollfd wanted{socket.get(), static_cast<short>(sent < bytes.size() ? POLLIN | POLLOUT : POLLIN), 0};
      if (::poll(&wanted, 1, 60000) != 1) return heard + " and did not close";
      char buffer[4096];
      const ssize_t got = ::recv(socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got > 0) heard.append(buffer, static_cast<size_t>(got));
      if (got == 0 || (got < 0 && errno != EAGAIN)) return heard;
      const ssize_t more = ::send(socket.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (more > 0) sent += static_cast<size_t>(more);
    }
  }

  int port_ = 0;
  std::unique_ptr<StoreServer> server_;
};

// Returns the peak memory of this process in kB.
int64_t peak_memory() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
  }
  return 0;
}

const std::string kGreeting = std::string(SealedConnection::kMagic) + std::string(16, 'n');
constexpr size_t kGreetingBytes = 24;

// Returns a message like a client's, with a guessed seal.
std::string forged(StoreRequest kind, const StoreMessage& message, uint32_t claimed_bytes = 0) {
  const std::string body = pack(message);
  const uint32_t head[] = {claimed_bytes > 0 ? claimed_bytes : static_cast<uint32_t>(body.size()),
                           static_cast<uint32_t>(kind), 17, 4};
  return std::string(reinterpret_cast<const char*>(head), sizeof head) + body;
}

TEST_F(Served, AStrangerCannotReadSetOrDelete) {
  serve();
  const auto member = join();
  member->set("key", "value");
  const std::string c10d = std::string("\0\xce\xf7\x85\x3c\x01\x04\0\0\0\0\0\0\0/key\x01\0\0\0\0\0\0\0x", 26);
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\n\r\n"), c10d, kGreeting + forged(StoreRequest::set, {1, 0, {"key", "x"}}),
        kGreeting + forged(StoreRequest::remove, {1, 0, {"key"}}),
        kGreeting + forged(StoreRequest::get, {1, 0, {"key"}})}) {
    const std::string heard = talk(connect(), words);
    EXPECT_EQ(heard.size(), kGreetingBytes) << heard;  // a random number, which is of no use
    EXPECT_THAT(heard, ::testing::Not(HasSubstr("value")));
  }
  int error = 0;
  const auto guesser = join("another token");
  EXPECT_THAT(guesser->greet(kLong, &error).value_or("it was served"), HasSubstr("authentication failed"));
  EXPECT_THROW(guesser->set("key", "x"), Error);
  EXPECT_THROW(guesser->remove("key"), Error);
  EXPECT_EQ(member->get("key", 0ms), "value");
}

TEST_F(Served, WhatAStrangerSendsIsNotKept) {
  serve();
  const auto member = join();
  member->add("count", 1);
  const std::string piece(1 << 20, 'x');
  for (const uint32_t claimed : {uint32_t{1} << 30, uint32_t{40}}) {  // a large message; a small one and more
    const int64_t before = peak_memory();
    const UniqueFd socket = connect();
    const std::string begin = kGreeting + forged(StoreRequest::set, {}, claimed);
    ASSERT_EQ(::send(socket.get(), begin.data(), begin.size(), MSG_NOSIGNAL), static_cast<ssize_t>(begin.size()));
    int sent = 0;
    for (pollfd wanted{socket.get(), POLLOUT, 0}; sent < 300 && ::poll(&wanted, 1, 60000) == 1; ++sent) {
      if (::send(socket.get(), piece.data(), piece.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) break;
    }
    EXPECT_LT(sent, 300) << "the server has not closed";
    // The server would keep 300 MB. It reads 1 kB at a time, and the kernel's buffers are not counted.
    EXPECT_LT(peak_memory() - before, 32 << 10);
  }
  EXPECT_EQ(member->add("count", 1), 2);
}

TEST_F(Served, SilentConnectionsKeepNobodyOut) {
  StoreServer::Limits limits;
  limits.strangers = 8;
  limits.introduction = kLong;
  serve(limits);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connect());
  const auto member = join();
  EXPECT_EQ(member->add("count", 1), 1);
  int closed = 0;
  for (size_t i = 0; i + limits.strangers < silent.size(); ++i) {
    char greeting[64];
    pollfd wanted{silent[i].get(), POLLIN | POLLRDHUP, 0};
    while ((wanted.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) ASSERT_EQ(::poll(&wanted, 1, 60000), 1);
    while (::recv(silent[i].get(), greeting, sizeof greeting, 0) > 0) {
    }
    ++closed;
  }
  EXPECT_EQ(closed, 92);
  EXPECT_EQ(member->add("count", 1), 2);
}

TEST_F(Served, WhoDoesNotAuthenticateInTimeIsDropped) {
  StoreServer::Limits limits;
  limits.introduction = 20ms;
  serve(limits);
  const auto member = join();
  EXPECT_EQ(member->add("count", 1), 1);
  EXPECT_EQ(talk(connect(), "").size(), kGreetingBytes);
  EXPECT_EQ(talk(connect(), kGreeting).size(), kGreetingBytes);
  EXPECT_EQ(member->add("count", 1), 2);  // a peer that is silent after authenticating is kept
}

TEST_F(Served, TheLimitHoldsForMembersToo) {
  StoreServer::Limits limits;
  limits.bytes = 4096;
  serve(limits);
  const auto member = join();
  member->set("a", std::string(2000, 'x'));
  member->set("a", std::string(3000, 'x'));
  try {
    member->set("b", std::string(3000, 'x'));
    ADD_FAILURE() << "it was kept";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), CONCORD_STATUS_OUT_OF_MEMORY);
    EXPECT_THAT(error.what(), HasSubstr("the job's store is full"));
  }
  EXPECT_FALSE(member->has("b"));
  EXPECT_TRUE(member->remove("a"));
  member->set("b", std::string(3000, 'x'));
  EXPECT_THROW(member->set("c", std::string(kMaxStoreRequest, 'x')), Error);
  EXPECT_THROW(member->add("b", 1), Error) << "no counter";
}

TEST(StoreMessage, ComesBackAsItWasAndShortOnesAreRefused) {
  const StoreMessage message{7, -3, {"key", "", std::string("\0x", 2)}};
  const std::string bytes = pack(message);
  EXPECT_EQ(unpack_store_message(bytes), message);
  size_t refused = 0;
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto part = unpack_store_message(std::string_view(bytes).substr(0, length));
    if (!part) ++refused;
    EXPECT_NE(part, message);
  }
  // Complete after 16 bytes, and after each of the first two texts (4 + 3 and 4 bytes).
  EXPECT_EQ(refused, bytes.size() - 3);
  EXPECT_FALSE(unpack_store_message(bytes + std::string("\xff\xff\xff\xff", 4)));
}

// Connects as another user, and returns the number of bytes that the server has sent.
int bytes_for_user(uid_t user, const std::string& name) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::string reason;
    if (::setuid(user) != 0) ::_exit(99);
    const UniqueFd socket = connect_unix(name, &reason);  // of root, which is trusted
    pollfd wanted{socket.get(), POLLIN, 0};
    char greeting[64];
    ::_exit(socket && ::poll(&wanted, 1, 60000) == 1 ? static_cast<int>(::recv(socket.get(), greeting, 64, 0)) : 98);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(UnixStore, ServesProcessesOfTheSameUserOnly) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can start a process of another user";
  const std::string name = "concord-test-" + std::to_string(::getpid());
  const StoreServer server(listen_on_unix(name).socket, "", {});
  EXPECT_EQ(bytes_for_user(0, name), static_cast<int>(kGreetingBytes));
  EXPECT_EQ(bytes_for_user(65534, name), 0);
}

}  // namespace
}  // namespace concord
