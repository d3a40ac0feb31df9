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

#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/base/framed_socket.hpp"
#include "platform/base/keyed_hash.hpp"

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
    socket_.put_raw(std::string(kMagic) + nonce_);
  }

  int descriptor() const { return socket_.descriptor(); }
  bool open() const { return socket_.open(); }
  short wanted_events() const { return socket_.wanted_events(); }
  size_t unsent() const { return socket_.unsent(); }
  bool is_known() const { return received_ > 0; }  // a genuine message has arrived
  int error() const { return socket_.error(); }
  void flush() { socket_.flush(); }
  void close() { socket_.close(); }

  // Queues a message and sends what the socket accepts. Errors show in fill().
  void put(uint32_t kind, std::string_view body) {
    if (peer_nonce_.empty()) {
      waiting_.push_back({kind, std::string(body)});
      return;
    }
    socket_.put({.kind = kind, .seal = seal(end_, sent_++, kind, body)}, body);
  }

  // Reads what has arrived, at most one piece, which is short for a peer that is not known yet: a peer that sends more
  // than allowed cannot fill the memory, provided that next() is called after every fill(). Returns false at the end of
  // the connection and after an error, which is in error(); 0: the peer has closed.
  bool fill() { return is_known() ? socket_.fill() : socket_.fill(kFirstPiece); }

  // Returns the next whole message. A wrong seal or a body of more than |limit| bytes closes the connection.
  std::optional<Message> next(size_t limit) {
    if (!take_greeting()) return std::nullopt;
    auto message = socket_.next(limit);
    if (!message) return std::nullopt;
    const auto& [header, body] = *message;
    const End from = end_ == End::server ? End::client : End::server;
    if (seal(from, received_, header.kind, body) != header.seal) {
      socket_.refuse(kWrongSecret);
      return std::nullopt;
    }
    ++received_;
    return Message{header.kind, std::move(message->body)};
  }

 private:
  struct Header {
    uint32_t bytes = 0;
    uint32_t kind = 0;
    uint64_t seal = 0;
  };
  static constexpr size_t kNonce = 16;
  static constexpr size_t kFirstPiece = 1 << 10;

  // Returns whether the peer's greeting is complete.
  bool take_greeting() {
    if (!peer_nonce_.empty()) return true;
    const std::string_view begin = socket_.arrived().substr(0, kMagic.size());
    if (begin != kMagic.substr(0, begin.size())) socket_.refuse(kNoPeer);
    if (socket_.arrived().size() < kMagic.size() + kNonce) return false;
    peer_nonce_ = socket_.take_raw(kMagic.size() + kNonce).substr(kMagic.size());
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

  FramedSocket<Header> socket_;
  End end_ = End::client;
  KeyedHash hash_{""};
  std::string purpose_;
  std::string nonce_, peer_nonce_;  // empty: not received yet
  uint64_t sent_ = 0, received_ = 0;
  std::vector<Message> waiting_;  // for the peer's random number, on which their seals depend
};

}  // namespace concord
