#include "core/mesh/store/master_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

namespace concord {
namespace {

// Returns a socket bound to |port| (0: any) on all addresses, IPv4 and, if available, IPv6. Invalid with errno set on
// failure.
UniqueFd bind_everywhere(int port) {
  const int yes = 1;
  const int no = 0;
  UniqueFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return socket;
    if (errno == EADDRINUSE) return UniqueFd();
  }
  socket = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return socket;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return socket;
  return UniqueFd();
}

}  // namespace

HeldPort::HeldPort() : socket_(bind_everywhere(0)) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (!socket_ || ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot find a free port");
  }
  port_ = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                              : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

bool port_is_free(int port) { return static_cast<bool>(bind_everywhere(port)) || errno != EADDRINUSE; }

}  // namespace concord
