// A stream socket that carries whole messages between two processes with the same secret, without ever blocking.
//
// Both ends first send a greeting: kMagic and a random number. Every message then carries a keyed hash of itself, both
// random numbers, its position in the sequence, its direction and what the connection is for. A process without the
// secret can therefore neither forge, repeat, reorder nor redirect a message. The secret is never sent. Messages are
// not encrypted. An empty secret admits everyone.
//
// Example, given UniqueFd socket, const std::string& token:
//   SealedConnection connection(std::move(socket), SealedConnection::End::client, token, "store");
//   connection.put(7, "a request");
//   connection.fill();  // once poll reports connection.wanted_events() for connection.descriptor()
//   while (const auto message = connection.next(1 << 16)) { /* message->kind, message->body */ }
//
// Threads: one at a time.
#pragma once

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/base/keyed_hash.hpp"
#include "platform/base/unique_fd.hpp"

namespace concord {

class SealedConnection {
 public:
  enum class End { server, client };
  struct Message {
    uint32_t kind = 0;
    std::string body;
  };
  static constexpr std::string_view kMagic = "concord3";  // changes with the protocol
  static constexpr int kNoPeer = EPROTO;                  // error(): not this protocol, or a message over the limit
  static constexpr int kWrongSecret = EKEYREJECTED;       // error(): the peer has another secret

  SealedConnection() = default;
  SealedConnection(UniqueFd socket, End end, std::string_view secret, std::string_view purpose)
      : socket_(std::move(socket)), end_(end), hash_(secret), purpose_(purpose), nonce_(kNonce, '\0') {
    if (::getrandom(nonce_.data(), nonce_.size(), 0) != static_cast<ssize_t>(kNonce)) close();
    out_ = std::string(kMagic) + nonce_;
    flush();
  }

  int descriptor() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  short wanted_events() const { return static_cast<short>(POLLIN | (unsent() > 0 ? POLLOUT : 0)); }
  size_t unsent() const { return out_.size() - sent_bytes_; }
  bool is_known() const { return received_ > 0; }  // a genuine message has arrived

  // Queues a message and sends what the socket takes. Errors show in fill().
  void put(uint32_t kind, std::string_view body) {
    if (peer_nonce_.empty()) {
      waiting_.push_back({kind, std::string(body)});
      return;
    }
    const Header header{static_cast<uint32_t>(body.size()), kind, seal(end_, sent_++, kind, body)};
    out_.append(reinterpret_cast<const char*>(&header), sizeof header);
    out_.append(body);
    flush();
  }

  void flush() {
    while (unsent() > 0 && socket_) {
      const ssize_t sent = ::send(socket_.get(), out_.data() + sent_bytes_, unsent(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      sent_bytes_ = sent < 0 ? out_.size() : sent_bytes_ + static_cast<size_t>(sent);
    }
    out_.clear();
    sent_bytes_ = 0;
  }

  // Reads what has arrived, at most one piece, which is short for a peer that is not known yet: whoever sends more than
  // it may cannot fill the memory, provided that next() is called after every fill(). Returns false at the end of the
  // connection and after an error, which is in error(); 0: the peer has closed.
  bool fill() {
    if (!socket_) return false;
    const size_t before = in_.size();
    in_.resize(before + (is_known() ? kPiece : kFirstPiece));
    ssize_t got = 0;
    do got = ::recv(socket_.get(), in_.data() + before, in_.size() - before, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    const int failure = got < 0 ? errno : 0;
    in_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got > 0 || failure == EAGAIN || failure == EWOULDBLOCK) return true;
    error_ = failure;
    return false;
  }

  // Returns the next whole message. A wrong seal or a body of more than |limit| bytes closes the connection.
  std::optional<Message> next(size_t limit) {
    if (!take_greeting()) return std::nullopt;
    Header header;
    if (in_.size() < sizeof header) return std::nullopt;
    std::memcpy(&header, in_.data(), sizeof header);
    if (header.bytes > limit) return refuse(kNoPeer);
    if (in_.size() < sizeof header + header.bytes) return std::nullopt;
    Message message{header.kind, in_.substr(sizeof header, header.bytes)};
    in_.erase(0, sizeof header + header.bytes);
    const End from = end_ == End::server ? End::client : End::server;
    if (seal(from, received_, header.kind, message.body) != header.seal) return refuse(kWrongSecret);
    ++received_;
    return message;
  }

  int error() const { return error_; }
  void close() { socket_.reset(); }

 private:
  struct Header {
    uint32_t bytes = 0;
    uint32_t kind = 0;
    uint64_t seal = 0;
  };
  static constexpr size_t kNonce = 16;
  static constexpr size_t kPiece = 64 << 10;
  static constexpr size_t kFirstPiece = 1 << 10;

  std::nullopt_t refuse(int error) {
    in_.clear();
    error_ = error;
    close();
    return std::nullopt;
  }

  // Returns whether the peer's greeting is complete.
  bool take_greeting() {
    if (!peer_nonce_.empty()) return true;
    const std::string_view begin = std::string_view(in_).substr(0, kMagic.size());
    if (begin != kMagic.substr(0, begin.size())) refuse(kNoPeer);
    if (in_.size() < kMagic.size() + kNonce) return false;
    peer_nonce_ = in_.substr(kMagic.size(), kNonce);
    in_.erase(0, kMagic.size() + kNonce);
    for (const Message& message : std::exchange(waiting_, {})) put(message.kind, message.body);
    return true;
  }

  uint64_t seal(End from, uint64_t number, uint32_t kind, std::string_view body) const {
    const uint64_t head[] = {number, kind, purpose_.size(), from == End::server ? uint64_t{1} : uint64_t{2}};
    std::string text(reinterpret_cast<const char*>(head), sizeof head);
    text += purpose_;
    text += end_ == End::server ? nonce_ + peer_nonce_ : peer_nonce_ + nonce_;
    text += body;
    return hash_(text);
  }

  UniqueFd socket_;
  End end_ = End::client;
  KeyedHash hash_{""};
  std::string purpose_;
  std::string nonce_, peer_nonce_;  // empty: not received yet
  uint64_t sent_ = 0, received_ = 0;
  std::string in_, out_;
  size_t sent_bytes_ = 0;         // bytes of out_ that were sent
  std::vector<Message> waiting_;  // for the peer's random number, on which their seals depend
  int error_ = 0;
};

}  // namespace concord
