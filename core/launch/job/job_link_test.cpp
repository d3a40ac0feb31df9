#include "core/launch/job/job_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <deque>

#include "core/base/config_error.h"
#include "core/mesh/store/master_port.h"
#include "core/mesh/store/sockets.h"

namespace concord {
namespace {

using ::testing::HasSubstr;
using MessageKind = JobMessage::Kind;
using namespace std::chrono_literals;

constexpr auto kNoHang = 60s;  // ends a hang; no verdict depends on it
const std::string kHost = "127.0.0.1";
const std::string kMagic(SealedConnection::kMagic);

TEST(JobMessage, ComesBackAsItWas) {
  for (const JobMessage& message :
       {JobMessage{
            .kind = MessageKind::hello, .numbers = {1, 2, 4, 3, 1, 7, -1, -1, 0, 1}, .text = "process 12 on node|3"},
        JobMessage{.kind = MessageKind::start, .numbers = {2, 29511, 4, 2, 0, 1}},
        JobMessage{.kind = MessageKind::alive}, JobMessage{.kind = MessageKind::alive, .numbers = {-1, 40}},
        ended_message(3, {.has_failed = true, .failed_slot = 1, .exit_code = 71})}) {
    EXPECT_EQ(unpack_message(pack(message)), message) << pack(message);
  }
  EXPECT_EQ(pack({.kind = MessageKind::start, .numbers = {2, 29511, 4, 2, 0, 1}}), "start 2 29511 4 2 0 1|");
  const NodeEnd end{.succeeded = true, .stop_signal = 15, .stopped_as_asked = true, .can_start_again = false};
  EXPECT_EQ(node_end(*unpack_message(pack(ended_message(0, end)))), end);
}

TEST(JobMessage, RefusesWhatIsNone) {
  for (const char* text :
       {"", "start", "start 1|", "start 1 2 3 4|", "start 1 2 3 4 x|", "start 1 2 3 4 5", "stop1 2|", "stop  1 2|",
        "stop 1 99999999999999999999|", "hallo 1 2 3 4 5|", "|", "start 1 2 3 4 5 |"}) {
    EXPECT_FALSE(unpack_message(text)) << text;
  }
  EXPECT_EQ(unpack_message("refused|a\nb\x1b[2J")->text, "a b [2J");
}

class Link : public ::testing::Test {
 protected:
  Link() : leader_(JobLink::serve(kHost, port_.port(), "secret")) {}

  std::unique_ptr<JobLink> join(const std::string& token) {
    std::string why;
    return JobLink::try_join(kHost, port_.port(), token, kNoHang, &why);
  }
  // Waits for the next thing that |link| hears.
  static JobLink::Received next(JobLink& link) {
    const auto end = std::chrono::steady_clock::now() + kNoHang;
    static std::map<JobLink*, std::deque<JobLink::Received>> rest;
    while (rest[&link].empty() && std::chrono::steady_clock::now() < end) {
      for (JobLink::Received& heard : link.take()) rest[&link].push_back(heard);
      std::this_thread::sleep_for(1ms);
    }
    if (rest[&link].empty()) return {.peer = -1, .message = std::nullopt, .why = "nothing came"};
    JobLink::Received heard = rest[&link].front();
    rest[&link].pop_front();
    return heard;
  }
  // Joins, says hello; the leader's number of it.
  int greet(JobLink& member, int node) {
    member.send(JobLink::kLeader, {.kind = MessageKind::hello, .numbers = {node, 2, 1, 1, 1, 7, 29501, -1, -1, 0, 1}});
    const JobLink::Received heard = next(*leader_);
    EXPECT_TRUE(heard.message && heard.message->numbers[0] == node) << heard.why;
    return heard.peer;
  }
  UniqueFd stranger() {
    std::string reason;
    UniqueFd socket = connect_once(kHost, port_.port(), 1000ms, &reason);
    EXPECT_TRUE(socket) << reason;
    return socket;
  }

  HeldPort port_;
  std::unique_ptr<JobLink> leader_;
};

TEST_F(Link, CarriesMessagesInOrderAndTellsTheEnd) {
  auto one = join("secret"), two = join("secret");
  const int first = greet(*one, 1), second = greet(*two, 2);
  for (int i = 0; i < 100; ++i) leader_->send(second, {.kind = MessageKind::finish, .numbers = {i}});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(next(*two).message->numbers, std::vector<int64_t>{i});
  one.reset();
  const JobLink::Received heard = next(*leader_);
  EXPECT_EQ(heard.peer, first);
  EXPECT_FALSE(heard.message || heard.was_silent);
  leader_->send(second, {.kind = MessageKind::stop, .numbers = {1, 0}, .text = "why"});
  leader_->drop(second);
  EXPECT_EQ(next(*two).message->text, "why");  // before the end
  EXPECT_FALSE(next(*two).message);
}

TEST_F(Link, AnotherTokenIsNotHeard) {
  auto stranger = join("guess");
  stranger->send(JobLink::kLeader, {.kind = MessageKind::hello, .numbers = {1, 2, 1, 1, 1, 7, 29501, -1, -1, 0, 1}});
  EXPECT_FALSE(next(*stranger).message);  // cut off
  auto member = join("secret");
  greet(*member, 1);  // the first that the leader hears
}

// Garbage, silence and a flood; meanwhile the job goes on.
TEST_F(Link, StrangersDoNotDisturb) {
  auto member = join("secret");
  const int peer = greet(*member, 1);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(stranger());
  for (const std::string& garbage : {std::string("GET / HTTP/1.0\r\n\r\n"), kMagic + std::string(4000, '\xff')}) {
    const UniqueFd socket = stranger();
    EXPECT_EQ(::send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), static_cast<ssize_t>(garbage.size()));
    char byte = 0;
    while (::recv(socket.get(), &byte, 1, 0) != 0 && (errno == EAGAIN || byte != 0)) std::this_thread::sleep_for(1ms);
  }
  auto second = join("secret");
  greet(*second, 2);
  leader_->send(peer, {.kind = MessageKind::finish, .numbers = {7}});
  EXPECT_EQ(next(*member).message->numbers, std::vector<int64_t>{7});
}

// A replayed message is rejected: the sequence numbers differ.
TEST_F(Link, ARepeatedMessageIsRefused) {
  HeldPort other_port;
  auto other = JobLink::serve(kHost, other_port.port(), "secret");  // to see what a genuine member sends
  std::string reason, seen;
  Listener tap = listen_on(kHost, 0);
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ASSERT_EQ(::getsockname(tap.socket.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const int tap_port = ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
  std::string why;
  auto member = JobLink::try_join(kHost, tap_port, "secret", kNoHang, &why);
  member->send(JobLink::kLeader, {.kind = MessageKind::hello, .numbers = {1, 2, 1, 1, 1, 7, 29501, -1, -1, 0, 1}});
  const UniqueFd tapped(::accept(tap.socket.get(), nullptr, nullptr));
  const std::string greeting = kMagic + std::string(16, 'n');
  ASSERT_EQ(::send(tapped.get(), greeting.data(), greeting.size(), 0), static_cast<ssize_t>(greeting.size()));
  char buffer[4096];
  while (seen.size() < 24 + 16 + 5) {
    const ssize_t got = ::recv(tapped.get(), buffer, sizeof buffer, 0);
    ASSERT_GT(got, 0);
    seen.append(buffer, static_cast<size_t>(got));
  }
  const UniqueFd replay = stranger();
  ASSERT_EQ(::send(replay.get(), seen.data(), seen.size(), 0), static_cast<ssize_t>(seen.size()));
  auto genuine = join("secret");
  genuine->send(JobLink::kLeader,
                {.kind = MessageKind::hello, .numbers = {1, 2, 1, 1, 1, 7, 29501, -1, -1, 0, 1}, .text = "genuine"});
  const JobLink::Received heard = next(*leader_);
  ASSERT_TRUE(heard.message);
  EXPECT_EQ(heard.message->text, "genuine");
}

TEST(JobLink, SaysThatThePortIsTaken) {
  const HeldPort port;
  const auto first = JobLink::serve(kHost, port.port(), "");
  try {
    JobLink::serve(kHost, port.port(), "");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("choose another --master_port"));
  }
  std::string why;
  EXPECT_EQ(JobLink::try_join(kHost, 1, "", kNoHang, &why), nullptr);
  EXPECT_NE(why, "");
}

}  // namespace
}  // namespace concord
