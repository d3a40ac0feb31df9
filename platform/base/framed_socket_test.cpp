#include "platform/base/framed_socket.hpp"

#include <gtest/gtest.h>

namespace concord {
namespace {

struct Header {
  uint32_t bytes = 0;
  uint32_t kind = 0;
};

class FramedSocketTest : public testing::Test {
 protected:
  FramedSocketTest() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    here_ = FramedSocket<Header>(UniqueFd(ends[0]));
    there_ = FramedSocket<Header>(UniqueFd(ends[1]));
  }
  static Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::milliseconds(1); }
  static Deadline late() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

  FramedSocket<Header> here_, there_;
};

TEST_F(FramedSocketTest, MessagesArriveWholeAndInOrder) {
  here_.put({.kind = 1}, "one");
  here_.put({.kind = 2}, "");
  here_.put({.kind = 3}, std::string(1000, 'x'));
  for (const uint32_t kind : {1u, 2u, 3u}) {
    const auto message = there_.receive(1000, late());
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->header.kind, kind);
    EXPECT_EQ(message->body.size(), message->header.bytes);
  }
  EXPECT_FALSE(there_.next(1000).has_value());
}

TEST_F(FramedSocketTest, APartOfAMessageIsNotReturned) {
  const Header header{4, 7};
  here_.put_raw(std::string_view(reinterpret_cast<const char*>(&header), sizeof header));
  here_.put_raw("ab");
  EXPECT_FALSE(there_.receive(4, soon()).has_value());
  EXPECT_TRUE(there_.open());
  here_.put_raw("cd");
  const auto message = there_.receive(4, late());
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->body, "abcd");
}

TEST_F(FramedSocketTest, AMessageOverTheLimitClosesTheConnection) {
  here_.put({}, "12345");
  EXPECT_FALSE(there_.receive(4, late()).has_value());
  EXPECT_FALSE(there_.open());
  EXPECT_EQ(there_.error(), FramedSocket<Header>::kTooLong);
}

TEST_F(FramedSocketTest, ReceivingEndsAtTheDeadlineAndWhenThePeerCloses) {
  EXPECT_FALSE(there_.receive(4, soon()).has_value());
  EXPECT_TRUE(there_.open());
  here_.close();
  EXPECT_FALSE(there_.receive(4, late()).has_value());
  EXPECT_EQ(there_.error(), 0);
}

TEST_F(FramedSocketTest, SendingEndsAtTheDeadlineAndFailsOnceThePeerHasClosed) {
  const std::string more_than_the_socket_holds(16 << 20, 'x');
  EXPECT_FALSE(here_.send({}, more_than_the_socket_holds, soon()));
  EXPECT_GT(here_.unsent(), 0u);
  there_.close();
  EXPECT_FALSE(here_.send({}, "y", late()));
}

TEST_F(FramedSocketTest, WholeTextsAreSentAndReceivedWhileTheOtherSideReads) {
  const std::string text(16 << 20, 'x');
  EXPECT_FALSE(send_all(here_.descriptor(), text, [] { return false; })) << "more than the socket holds";
  std::string received;
  const auto drain = [&] {
    EXPECT_TRUE(there_.fill());
    received += there_.take_raw(there_.arrived().size());
    return true;
  };
  while (wait_until_ready(there_.descriptor(), POLLIN, soon())) drain();
  received.clear();
  EXPECT_TRUE(send_all(here_.descriptor(), text, drain));
  while (received.size() < text.size()) drain();
  EXPECT_TRUE(received == text);
}

TEST_F(FramedSocketTest, ReceivingAnExactNumberOfBytesEndsWithTheStream) {
  here_.put_raw("abcd");
  std::string bytes(3, '\0');
  const auto always = [] { return true; };
  EXPECT_FALSE(receive_exactly(there_.descriptor(), bytes.data(), 3, [] { return false; }));
  EXPECT_TRUE(receive_exactly(there_.descriptor(), bytes.data(), 3, always));
  EXPECT_EQ(bytes, "abc");
  here_.close();
  EXPECT_FALSE(receive_exactly(there_.descriptor(), bytes.data(), 2, always)) << "one byte is left";
  EXPECT_EQ(errno, 0);
  EXPECT_FALSE(send_all(there_.descriptor(), "x", always));
  EXPECT_EQ(errno, EPIPE);
}

}  // namespace
}  // namespace concord
