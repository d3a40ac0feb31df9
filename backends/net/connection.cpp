#include "backends/net/connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "backends/net/control.h"
#include "platform/sdk/plugin.hpp"

namespace concord::net {
namespace {

union AnyAddress {
  sockaddr plain;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

bool is_v4(const Address& address) { return IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(address.data())); }

socklen_t write_address(const Address& address, uint16_t port, AnyAddress* out) {
  std::memset(out, 0, sizeof *out);
  if (is_v4(address)) {
    out->v4.sin_family = AF_INET;
    out->v4.sin_port = htons(port);
    std::memcpy(&out->v4.sin_addr, address.data() + 12, 4);
    return sizeof out->v4;
  }
  out->v6.sin6_family = AF_INET6;
  out->v6.sin6_port = htons(port);
  std::memcpy(&out->v6.sin6_addr, address.data(), address.size());
  return sizeof out->v6;
}

// Enables keep-alive probes and a timeout for unacknowledged data, so that a lost host is detected on idle and on busy
// connections.
void watch_for_silence(int socket) {
  const int on = 1;
  const int interval = 1;
  const int probes = static_cast<int>(kUnreachableAfter.count() / 1000);
  const unsigned limit = static_cast<unsigned>(kUnreachableAfter.count());
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &interval, sizeof interval);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// IPv6's "any" address takes IPv4 connections, too.
UniqueFd open_listener(const Address& address) {
  AnyAddress own{};
  const socklen_t bytes = write_address(address, 0, &own);
  UniqueFd socket(::socket(own.plain.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {};
  const int off = 0;
  if (!is_v4(address)) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket.get(), &own.plain, bytes) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) return {};
  return socket;
}

}  // namespace

std::string to_text(const Address& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (is_v4(address)) return ::inet_ntop(AF_INET, address.data() + 12, text, sizeof text);
  return ::inet_ntop(AF_INET6, address.data(), text, sizeof text);
}

UniqueFd listen_on(const std::optional<Address>& address, uint16_t* out_port) {
  constexpr Address kAny{};
  constexpr Address kAnyV4{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  UniqueFd socket = open_listener(address.value_or(kAny));
  if (!socket && !address) socket = open_listener(kAnyV4);
  AnyAddress bound{};
  socklen_t bytes = sizeof bound;
  if (!socket || ::getsockname(socket.get(), &bound.plain, &bytes) != 0) {
    sdk::fail(CONCORD_STATUS_UNAVAILABLE,
              sdk::text("cannot listen on a TCP port of %s for ranks of other hosts: %s",
                        address ? to_text(*address).c_str() : "this host", std::strerror(errno)));
  }
  *out_port = ntohs(bound.plain.sa_family == AF_INET6 ? bound.v6.sin6_port : bound.v4.sin_port);
  return socket;
}

UniqueFd accept_from(const UniqueFd& listener) {
  UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) watch_for_silence(socket.get());
  return socket;
}

UniqueFd connect_to(const Address& address, uint16_t port, std::chrono::milliseconds patience, int* out_error) {
  AnyAddress to{};
  const socklen_t bytes = write_address(address, port, &to);
  UniqueFd socket(::socket(to.plain.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  *out_error = errno;
  if (!socket) return {};
  if (::connect(socket.get(), &to.plain, bytes) != 0) {
    *out_error = errno;
    if (errno != EINPROGRESS) return {};
    pollfd entry{socket.get(), POLLOUT, 0};
    *out_error = ETIMEDOUT;
    if (::poll(&entry, 1, static_cast<int>(patience.count())) <= 0) return {};
    socklen_t length = sizeof *out_error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, out_error, &length);
    if (*out_error != 0) return {};
  }
  watch_for_silence(socket.get());
  return socket;
}

}  // namespace concord::net
