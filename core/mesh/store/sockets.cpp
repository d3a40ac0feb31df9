#include "core/mesh/store/sockets.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>

namespace concord {
namespace {

// Returns a socket that listens on |address|, or a negative errno.
int listen_at(const sockaddr_storage& address) {
  UniqueFd fd(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return -errno;
  const int yes = 1;
  const int no = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address.ss_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);  // accept IPv4 on every address as well
  }
  const socklen_t length = address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return -errno;
  if (listen(fd.get(), SOMAXCONN) != 0) return -errno;
  return fd.release();
}

// Returns |text| parsed as an address ("127.0.0.1", "::1"); nullopt if it is a host name.
std::optional<sockaddr_storage> parse_address(const std::string& text, int port) {
  sockaddr_storage address{};
  auto* in4 = reinterpret_cast<sockaddr_in*>(&address);
  auto* in6 = reinterpret_cast<sockaddr_in6*>(&address);
  if (inet_pton(AF_INET, text.c_str(), &in4->sin_addr) == 1) {
    in4->sin_family = AF_INET;
    in4->sin_port = htons(static_cast<uint16_t>(port));
  } else if (inet_pton(AF_INET6, text.c_str(), &in6->sin6_addr) == 1) {
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    return std::nullopt;
  }
  return address;
}

UniqueFd connect_to(const addrinfo& address, std::chrono::milliseconds limit, std::string* reason) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd && connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  if (!fd || errno != EINPROGRESS) {
    *reason = std::strerror(errno);
    return UniqueFd();
  }
  pollfd wanted{fd.get(), POLLOUT, 0};
  if (poll(&wanted, 1, static_cast<int>(limit.count())) != 1) {
    *reason = "no answer";
    return UniqueFd();
  }
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0) return fd;
  *reason = std::strerror(error);
  return UniqueFd();
}

}  // namespace

Listener listen_on(const std::string& host, int port) {
  const std::string here = host == "localhost" ? "127.0.0.1" : host;
  int fd = -EADDRNOTAVAIL;
  if (const auto address = parse_address(here, port)) {
    fd = listen_at(*address);
    if (fd >= 0) return {UniqueFd(fd), here};
  }
  for (const char* everywhere : {"::", "0.0.0.0"}) {
    if (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL) fd = listen_at(*parse_address(everywhere, port));
  }
  if (fd >= 0) return {UniqueFd(fd), "127.0.0.1"};
  return {UniqueFd(), "", -fd};
}

UniqueFd connect_once(const std::string& host, int port, std::chrono::milliseconds limit, std::string* reason) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) {
    *reason = fmt::format("'{}' is not a known host: {}", host, gai_strerror(failure));
    return UniqueFd();
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  *reason = "no address";
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    if (UniqueFd fd = connect_to(*address, limit, reason)) return fd;
  }
  return UniqueFd();
}

namespace {

// |ask|: getpeername or getsockname.
std::string address_by(decltype(getpeername)* ask, const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* end = reinterpret_cast<sockaddr*>(&address);
  char host[NI_MAXHOST];
  if (ask(socket.get(), end, &length) != 0) return "";
  if (getnameinfo(end, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
}

}  // namespace

std::string peer_address(const UniqueFd& socket) { return address_by(getpeername, socket); }
std::string own_address(const UniqueFd& socket) { return address_by(getsockname, socket); }

int own_port(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  // The port is at the same offset in both kinds of addresses.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

void end_when_silent(const UniqueFd& socket) {
  constexpr int kSeconds = static_cast<int>(kMachineSilence.count());
  constexpr unsigned kMilliseconds = 1000 * kSeconds;
  const int on = 1;
  const int probes = kSeconds - 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, &on, sizeof on);
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPINTVL, &on, sizeof on);
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kMilliseconds, sizeof kMilliseconds);
}

namespace {

struct UnixAddress {
  sockaddr_un name{};
  socklen_t length = 0;

  // A first byte of 0 makes the address abstract. A name that is too long is truncated.
  explicit UnixAddress(const std::string& text) {
    name.sun_family = AF_UNIX;
    const size_t bytes = text.copy(name.sun_path + 1, sizeof name.sun_path - 1);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  }
  const sockaddr* plain() const { return reinterpret_cast<const sockaddr*>(&name); }
};

}  // namespace

Listener listen_on_unix(const std::string& name) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const UnixAddress address(name);
  const bool listens = fd && bind(fd.get(), address.plain(), address.length) == 0 && listen(fd.get(), SOMAXCONN) == 0;
  if (!listens) return {UniqueFd(), "", errno};
  return {std::move(fd), ""};
}

UniqueFd connect_unix(const std::string& name, std::string* reason) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const UnixAddress address(name);
  if (!fd || connect(fd.get(), address.plain(), address.length) != 0) {
    *reason = std::strerror(errno);
    return UniqueFd();
  }
  ucred peer{};
  socklen_t length = sizeof peer;
  const bool is_known = getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
  if (is_known && (peer.uid == geteuid() || peer.uid == 0)) return fd;
  *reason = fmt::format("a process of user {} listens there", peer.uid);
  return UniqueFd();
}

}  // namespace concord
