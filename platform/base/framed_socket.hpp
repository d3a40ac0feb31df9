// A stream socket that carries messages: a header, then the body, whose length is in the header.
//
// Header is a plain struct with a member `uint32_t bytes`, the length of the body. put(), flush(), fill() and next()
// never block; send() and receive() wait until a deadline.
//
// Example, given UniqueFd socket, Deadline deadline:
//   struct Header { uint32_t bytes = 0; uint32_t kind = 0; };
//   FramedSocket<Header> connection(std::move(socket));
//   connection.send({.kind = 7}, "a request", deadline);
//   if (const auto answer = connection.receive(1 << 16, deadline)) { /* answer->header.kind, answer->body */ }
//
// Threads: one at a time.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "platform/base/stream_io.hpp"
#include "platform/base/unique_fd.hpp"

namespace concord {

using Deadline = std::chrono::steady_clock::time_point;

// Waits until poll reports |events| (or an error) for |descriptor|. Returns false after |deadline|, and with errno set
// if poll fails; Deadline::max(): no limit.
inline bool wait_until_ready(int descriptor, short events, Deadline deadline) {
  pollfd entry{descriptor, events, 0};
  while (true) {
    errno = 0;
    int limit = -1;
    if (deadline != Deadline::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      limit = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000));
    }
    const int ready = ::poll(&entry, 1, limit);
    if (ready > 0) return true;
    if (ready == 0 && limit <= 0) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// Appends a message to |out|: |header| with the length of |body|, and |body|.
template <class Header>
void append_message(Header header, std::string_view body, std::string* out) {
  header.bytes = static_cast<uint32_t>(body.size());
  out->append(reinterpret_cast<const char*>(&header), sizeof header).append(body);
}

template <class Header>
class FramedSocket {
 public:
  struct Message {
    Header header;
    std::string body;
  };
  static constexpr size_t kPiece = 64 << 10;
  static constexpr int kTooLong = EPROTO;  // error(): a message over the limit

  FramedSocket() = default;
  explicit FramedSocket(UniqueFd socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  void close() { socket_.reset(); }
  short wanted_events() const { return static_cast<short>(POLLIN | (unsent() > 0 ? POLLOUT : 0)); }
  size_t unsent() const { return out_.size() - sent_; }
  int error() const { return error_; }  // an errno; 0: none, or the peer has closed

  // Queues a message and sends what the socket accepts. Errors show in fill().
  void put(Header header, std::string_view body) {
    append_message(header, body, &out_);
    flush();
  }
  // Queues |bytes| without a header.
  void put_raw(std::string_view bytes) {
    out_.append(bytes);
    flush();
  }

  // Sends what the socket accepts. Returns false once sending has failed; what is queued is dropped then.
  bool flush() {
    while (unsent() > 0 && socket_) {
      const ssize_t sent = send_some(socket_.get(), std::string_view(out_).substr(sent_));
      if (sent == 0) return true;
      is_broken_ |= sent < 0;
      sent_ = sent < 0 ? out_.size() : sent_ + static_cast<size_t>(sent);
    }
    out_.clear();
    sent_ = 0;
    return !is_broken_;
  }

  // Reads what has arrived, at most |piece| bytes. Returns false at the end of the connection and after an error, which
  // is in error().
  bool fill(size_t piece = kPiece) {
    if (!socket_) return false;
    const size_t before = in_.size();
    in_.resize(before + piece);
    ssize_t got = 0;
    do got = ::recv(socket_.get(), in_.data() + before, piece, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    const int failure = got < 0 ? errno : 0;
    in_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got > 0 || failure == EAGAIN || failure == EWOULDBLOCK) return true;
    error_ = failure;
    return false;
  }

  // The bytes that have arrived and were not returned yet, and a way to return the first |count| of them.
  std::string_view arrived() const { return in_; }
  std::string take_raw(size_t count) {
    std::string bytes = in_.substr(0, count);
    in_.erase(0, count);
    return bytes;
  }

  // Returns the next message if all of it has arrived. A body of more than |limit| bytes closes the connection.
  std::optional<Message> next(size_t limit) {
    Message message;
    if (in_.size() < sizeof message.header) return std::nullopt;
    std::memcpy(&message.header, in_.data(), sizeof message.header);
    if (message.header.bytes > limit) {
      refuse(kTooLong);
      return std::nullopt;
    }
    const size_t bytes = sizeof message.header + message.header.bytes;
    if (in_.size() < bytes) return std::nullopt;
    message.body = in_.substr(sizeof message.header, message.header.bytes);
    in_.erase(0, bytes);
    return message;
  }

  // Drops what has arrived and closes, with |error| for error().
  void refuse(int error) {
    in_.clear();
    error_ = error;
    close();
  }

  // Sends a message. Waits until it is sent. Returns false if the peer has closed, or after |deadline|.
  bool send(const Header& header, std::string_view body, Deadline deadline = Deadline::max()) {
    put(header, body);
    while (flush()) {
      if (unsent() == 0) return open();
      if (!wait_until_ready(socket_.get(), POLLOUT, deadline)) return false;
    }
    return false;
  }

  // Returns the next message. Waits for it. Returns none if the peer has closed, after |deadline|, and if it is over
  // |limit|.
  std::optional<Message> receive(size_t limit, Deadline deadline = Deadline::max()) {
    while (true) {
      if (auto message = next(limit)) return message;
      if (!open() || !wait_until_ready(socket_.get(), POLLIN, deadline) || !fill()) return std::nullopt;
    }
  }

 private:
  UniqueFd socket_;
  std::string in_, out_;
  size_t sent_ = 0;         // bytes of out_ that were sent
  bool is_broken_ = false;  // sending has failed
  int error_ = 0;
};

}  // namespace concord
