// A file descriptor that closes itself.
#pragma once

#include <unistd.h>

#include <utility>

namespace concord::shm {

class FileDescriptor {
 public:
  explicit FileDescriptor(int number = -1) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~FileDescriptor() { close(); }

  int number() const { return number_; }
  bool valid() const { return number_ >= 0; }
  void close() {
    if (valid()) ::close(std::exchange(number_, -1));
  }

 private:
  int number_;
};

}  // namespace concord::shm
