// A TCP connection that carries whole messages, without ever blocking. Threads: one at a time.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "platform/base/unique_fd.hpp"

namespace concord::net {

using Address = std::array<unsigned char, 16>;  // IPv6, or IPv4 in its mapped form

std::string to_text(const Address& address);

struct Message {
  uint32_t kind = 0;
  std::string body;
};

class Connection {
 public:
  Connection() = default;
  explicit Connection(UniqueFd socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  short wanted_events() const { return static_cast<short>(out_.empty() ? POLLIN : POLLIN | POLLOUT); }

  // Queues a message and sends as much as goes. Errors show when reading.
  void put(uint32_t kind, std::string_view body);
  void flush();

  // Reads what has come; false at the end of the connection or after an error, which is in error(): 0 for an end.
  bool fill();
  // The next whole message. A longer body than |limit| ends the connection.
  std::optional<Message> next(size_t limit);

  int error() const { return error_; }
  void close() { socket_.reset(); }

 private:
  UniqueFd socket_;
  std::string in_;
  std::string out_;
  int error_ = 0;
};

// A socket that listens on a free port of |address|, or of all this host's addresses, and the port. Throws UNAVAILABLE.
UniqueFd listen_on(const std::optional<Address>& address, uint16_t* out_port);
// A new connection to |listener|, or none.
UniqueFd accept_from(const UniqueFd& listener);
// A connection to |address|, or none if there is no answer within |patience|; |out_error| is why.
UniqueFd connect_to(const Address& address, uint16_t port, std::chrono::milliseconds patience, int* out_error);

}  // namespace concord::net
