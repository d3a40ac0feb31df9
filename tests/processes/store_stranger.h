// A process without the job's token that connects to the port of its store.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/mesh/store/sockets.h"
#include "core/mesh/store/store_message.h"
#include "platform/base/sealed_connection.hpp"

namespace concord::tests {

class StoreStranger {
 public:
  explicit StoreStranger(int port) : port_(port) {}

  // Opens another connection and sends a different kind of data each time: nothing, c10d's TCPStore protocol, requests
  // with a guessed seal, a message of 1 GB. Returns false if there is no listener any longer.
  bool attack() {
    std::string reason;
    UniqueFd socket = connect_once("127.0.0.1", port_, std::chrono::seconds(10), &reason);
    if (!socket) return false;
    const std::string words = kinds_[next_++ % kinds_.size()];
    static_cast<void>(!::send(socket.get(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    open_.push_back(std::move(socket));
    if (open_.size() > 300) open_.erase(open_.begin());
    return true;
  }

 private:
  static std::string forged(StoreRequest kind, const StoreMessage& message, uint32_t more_bytes = 0) {
    const std::string body = pack(message);
    const uint32_t head[] = {static_cast<uint32_t>(body.size()) + more_bytes, static_cast<uint32_t>(kind), 17, 4};
    return std::string(SealedConnection::kMagic) + std::string(16, 'n') +
           std::string(reinterpret_cast<const char*>(head), sizeof head) + body;
  }

  const int port_;
  size_t next_ = 0;
  std::vector<UniqueFd> open_;
  const std::string fault_ = "concord/0/1/rendezvous/fault";
  const std::vector<std::string> kinds_ = {
      "", std::string("\0\xce\xf7\x85\x3c\x01\x04\0\0\0\0\0\0\0/key\x01\0\0\0\0\0\0\0x", 26),
      forged(StoreRequest::set, {1, 0, {fault_, "forged"}}),
      forged(StoreRequest::remove, {1, 0, {"concord/0/1/rendezvous/terms"}}),
      forged(StoreRequest::set, {1, 0, {fault_, std::string(100000, 'x')}}, 1 << 30)};
};

}  // namespace concord::tests
