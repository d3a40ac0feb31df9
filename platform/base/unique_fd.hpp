// A file descriptor with one owner, which closes it. The only such class of the tree, so every layer may include it.
//
// Errors of close are dropped, as there is nobody to tell; where they matter (data not yet on the disk), say
// ::close(fd.release()) and look at the result. Threads: one at a time, as with an int.
#pragma once

#include <unistd.h>

#include <utility>

namespace concord {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}  // a negative one (a failed open) is none
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }  // the caller owns it then
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace concord
