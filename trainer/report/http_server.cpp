#include "trainer/report/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "platform/base/unique_fd.hpp"

namespace concord {
namespace {

using HttpClock = std::chrono::steady_clock;

constexpr size_t kMaxRequest = 8192;
constexpr size_t kMaxConnections = 32;                      // a new one replaces the oldest that has not sent a request
constexpr auto kConnectionTime = std::chrono::seconds(10);  // for the request and the response together
constexpr auto kPause = std::chrono::milliseconds(100);     // after a connection could not be accepted
constexpr std::string_view kEndOfRequest = "\r\n\r\n";

const char* reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    default: return "Internal Server Error";
  }
}

std::string response_text(const HttpResponse& response, bool with_body) {
  std::string text = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
      response.status, reason_phrase(response.status), response.type, response.body.size());
  if (with_body) text += response.body;
  return text;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return lower;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin, end - begin + 1);
}

// Returns the value of the Host header, without a port; nullopt if there is none.
std::optional<std::string> host_of(std::string_view headers) {
  while (!headers.empty()) {
    const std::string_view line = headers.substr(0, headers.find("\r\n"));
    headers.remove_prefix(std::min(line.size() + 2, headers.size()));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || lower_case(line.substr(0, colon)) != "host") continue;
    const std::string host = lower_case(trimmed(line.substr(colon + 1)));
    const size_t port = host.rfind(':');
    return port == std::string::npos || host.ends_with(']') ? host : host.substr(0, port);
  }
  return std::nullopt;
}

bool is_this_machine(const std::string& host) { return host == "localhost" || host == "127.0.0.1" || host == "[::1]"; }

HttpResponse handled(const std::string& path, const HttpServer::Handler& handler) {
  try {
    return handler(path);
  } catch (const std::exception& error) {
    return {.status = 500, .body = std::string(error.what()) + "\n"};
  }
}

}  // namespace

std::string http_answer(std::string_view request, bool only_local, const HttpServer::Handler& handler) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const size_t first = line.find(' '), second = line.rfind(' ');
  const bool is_http =
      first != std::string_view::npos && second > first + 1 && line.substr(second + 1).starts_with("HTTP/1.");
  if (!is_http || line[first + 1] != '/')
    return response_text({.status = 400, .body = "not a request for a path\n"}, true);
  const std::string_view method = line.substr(0, first);
  if (method != "GET" && method != "HEAD") return response_text({.status = 405, .body = "only GET and HEAD\n"}, true);
  const std::optional<std::string> host = host_of(request.substr(std::min(line.size() + 2, request.size())));
  if (only_local && host && !is_this_machine(*host))
    return response_text({.status = 403, .body = "only for localhost\n"}, true);
  const std::string_view target = line.substr(first + 1, second - first - 1);
  return response_text(handled(std::string(target.substr(0, target.find('?'))), handler), method == "GET");
}

// Runs on its own thread, except the constructor and the destructor.
class HttpServer::Loop {
 public:
  Loop(const std::string& purpose, const std::string& host, int port, Handler handler)
      : purpose_(purpose), host_(host == "localhost" ? "127.0.0.1" : host), handler_(std::move(handler)) {
    listen_at(port);
    wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_) throw ConfigError(fmt::format("{}: cannot create an event: {}", purpose_, std::strerror(errno)));
    sigset_t all, before;  // signals are handled by the training thread
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Loop() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }

  std::string url() const {
    return fmt::format("http://{}:{}", host_.find(':') == std::string::npos ? host_ : "[" + host_ + "]", port_);
  }

 private:
  struct Connection {
    UniqueFd socket;
    HttpClock::time_point end;
    std::string input = {};
    std::string output = {};  // not empty: the response
    size_t sent = 0;
  };

  void listen_at(int port) {
    sockaddr_storage address{};
    auto* in4 = reinterpret_cast<sockaddr_in*>(&address);
    auto* in6 = reinterpret_cast<sockaddr_in6*>(&address);
    const bool is_v4 = ::inet_pton(AF_INET, host_.c_str(), &in4->sin_addr) == 1;
    if (!is_v4 && ::inet_pton(AF_INET6, host_.c_str(), &in6->sin6_addr) != 1) {
      throw ConfigError(fmt::format(
          "{}: {} is not an address; use 127.0.0.1 for this machine alone, or 0.0.0.0 for all that can reach it",
          purpose_, quoted(host_)));
    }
    address.ss_family = is_v4 ? AF_INET : AF_INET6;
    (is_v4 ? in4->sin_port : in6->sin6_port) = htons(static_cast<uint16_t>(port));
    socklen_t length = is_v4 ? sizeof *in4 : sizeof *in6;
    only_local_ = is_v4 ? (ntohl(in4->sin_addr.s_addr) >> 24) == 127 : IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
    listener_.reset(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int yes = 1;
    if (listener_) ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (!listener_ || ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::listen(listener_.get(), SOMAXCONN) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      throw ConfigError(fmt::format("{}: cannot listen at {}, port {}: {}; choose another port", purpose_, host_, port,
                                    std::strerror(errno)));
    }
    port_ = ntohs(is_v4 ? in4->sin_port : in6->sin6_port);
  }

  void run() {
    while (true) {
      std::vector<pollfd> wanted = {{wake_.get(), POLLIN, 0}};
      const bool accepts = HttpClock::now() >= paused_until_;
      wanted.push_back({accepts ? listener_.get() : -1, POLLIN, 0});
      for (const Connection& each : connections_)
        wanted.push_back({each.socket.get(), static_cast<short>(each.output.empty() ? POLLIN : POLLOUT), 0});
      // Without connections and pauses there is nothing to do until one arrives.
      ::poll(wanted.data(), wanted.size(), connections_.empty() && accepts ? -1 : static_cast<int>(kPause.count()));
      if (wanted[0].revents != 0) return;
      for (size_t i = connections_.size(); i-- > 0;) {
        const bool is_done = wanted[i + 2].revents != 0 && !proceed(connections_[i]);
        if (is_done || HttpClock::now() >= connections_[i].end)
          connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (wanted[1].revents != 0) accept_one();
    }
  }

  void accept_one() {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const HttpClock::time_point now = HttpClock::now();
    if (socket) {
      if (connections_.size() >= kMaxConnections) drop_one();
      connections_.push_back({.socket = std::move(socket), .end = now + kConnectionTime});
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      paused_until_ = now + kPause;  // no more files can be opened: accept would be retried immediately
    }
  }

  // Drops the connection that has been silent for longest; if all have sent a request, the one whose response takes
  // longest.
  void drop_one() {
    const auto silent = std::ranges::find_if(connections_, [](const Connection& each) { return each.output.empty(); });
    connections_.erase(silent != connections_.end() ? silent : connections_.begin());
  }

  // Returns false if the connection is finished.
  bool proceed(Connection& it) {
    if (it.output.empty() && !receive(it)) return false;
    while (it.sent < it.output.size()) {
      const ssize_t sent =
          ::send(it.socket.get(), it.output.data() + it.sent, it.output.size() - it.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      it.sent += static_cast<size_t>(sent);
    }
    if (it.output.empty()) return true;
    ::shutdown(it.socket.get(), SHUT_WR);
    return false;
  }

  bool receive(Connection& it) {
    char bytes[2048];
    const ssize_t got = ::recv(it.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    it.input.append(bytes, static_cast<size_t>(got));
    const size_t end = it.input.find(kEndOfRequest);
    if (end != std::string::npos) {
      it.output = http_answer(std::string_view(it.input).substr(0, end + kEndOfRequest.size()), only_local_, handler_);
    } else if (it.input.size() > kMaxRequest) {
      it.output = response_text({.status = 431, .body = "the request is too long\n"}, true);
    }
    return true;
  }

  std::string purpose_, host_;
  Handler handler_;
  UniqueFd listener_, wake_;
  int port_ = 0;
  bool only_local_ = false;
  HttpClock::time_point paused_until_ = {};
  std::vector<Connection> connections_;
  std::thread thread_;
};

HttpServer::HttpServer(const std::string& purpose, const std::string& host, int port, Handler handler)
    : loop_(std::make_unique<Loop>(purpose, host, port, std::move(handler))) {}
HttpServer::~HttpServer() = default;
std::string HttpServer::url() const { return loop_->url(); }

}  // namespace concord
