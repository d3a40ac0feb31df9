// Somebody who is no part of a job and reaches its store: a plain client of c10d's TCPStore, by its wire protocol, so
// that it needs no libtorch.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace concord::tests {

class StoreStranger {
 public:
  explicit StoreStranger(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    constexpr uint32_t kMagic = 0x3C85F7CE;
    send(std::string(1, kValidate) + bytes_of(kMagic));
  }
  ~StoreStranger() { ::close(fd_); }
  StoreStranger(const StoreStranger&) = delete;
  StoreStranger& operator=(const StoreStranger&) = delete;

  // False once the store is gone.
  bool connected() const { return connected_; }

  // A key is as list() gives it: TCPStore's own begin with '/'.
  void set(const std::string& key, const std::string& value) {
    send(std::string(1, kSet) + text_of(key) + text_of(value));
  }

  int64_t count() {
    send(std::string(1, kCount));
    return receive_number();
  }

  std::vector<std::string> list() {
    send(std::string(1, kList));
    std::vector<std::string> keys(static_cast<size_t>(receive_number()));
    for (std::string& key : keys) {
      key.resize(static_cast<size_t>(receive_number()));
      receive(key.data(), key.size());
    }
    return keys;
  }

 private:
  static constexpr char kValidate = 0, kSet = 1, kCount = 7, kList = 17;

  template <class Number>
  static std::string bytes_of(Number number) {
    return {reinterpret_cast<const char*>(&number), sizeof number};
  }
  static std::string text_of(const std::string& text) { return bytes_of(uint64_t{text.size()}) + text; }

  void send(const std::string& bytes) {
    if (connected_)
      connected_ = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  void receive(char* to, size_t bytes) {
    if (connected_) connected_ = bytes == 0 || ::recv(fd_, to, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }
  int64_t receive_number() {
    int64_t number = 0;
    receive(reinterpret_cast<char*>(&number), sizeof number);
    return connected_ ? number : 0;
  }

  int fd_;
  bool connected_ = false;
};

}  // namespace concord::tests
