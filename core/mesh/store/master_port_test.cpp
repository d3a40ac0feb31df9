#include "core/mesh/store/master_port.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <set>

namespace concord {
namespace {

UniqueFd listener(int port, bool reuse) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  const int on = reuse;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool works =
      bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(socket.get(), 8) == 0;
  return works ? std::move(socket) : UniqueFd();
}

TEST(HeldPort, CanBeListenedOnWhileItIsHeld) {
  const HeldPort held;
  EXPECT_GT(held.port(), 0);
  EXPECT_TRUE(listener(held.port(), true));
}

TEST(HeldPort, IsNotHandedOutASecondTime) {
  std::vector<HeldPort> held(200);
  std::set<int> ports;
  for (const HeldPort& port : held) ports.insert(port.port());
  EXPECT_EQ(ports.size(), held.size());
  EXPECT_FALSE(listener(held.front().port(), false)) << "somebody else could take it by chance";
}

TEST(PortIsFree, KnowsAPortInUse) {
  int port = 0;
  {
    const HeldPort held;
    port = held.port();
  }
  EXPECT_TRUE(port_is_free(port));
  const UniqueFd server = listener(port, true);
  ASSERT_TRUE(server);
  EXPECT_FALSE(port_is_free(port));
}

}  // namespace
}  // namespace concord
