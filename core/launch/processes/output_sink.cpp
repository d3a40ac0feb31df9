#include "core/launch/processes/output_sink.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <system_error>

namespace concord {
namespace {

// A second, non-blocking descriptor for the same pipe or terminal. A regular file needs none and would get its own
// offset.
UniqueFd open_again_nonblocking(int fd) {
  struct stat info{};
  if (::fstat(fd, &info) != 0 || !(S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))) return UniqueFd();
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
}

bool is_regular_file(int fd) {
  struct stat info{};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

}  // namespace

OutputSink::OutputSink(int fd, std::string name) : own_(open_again_nonblocking(fd)), name_(std::move(name)) {
  fd_ = own_ ? own_.get() : fd;
  // If the descriptor may block (a socket), poll guarantees space only for a small write.
  chunk_ = own_ || is_regular_file(fd_) ? 0 : PIPE_BUF;
}

OutputSink::OutputSink(const std::string& path)
    : own_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666)), name_(path) {
  if (!own_) throw std::system_error(errno, std::generic_category(), fmt::format("cannot write '{}'", path));
  fd_ = own_.get();
}

void OutputSink::append(std::string_view bytes) {
  if (!broken_) text_ += bytes;
}

void OutputSink::write_some() {
  while (!empty()) {
    const size_t rest = text_.size() - written_;
    const ssize_t length = ::write(fd_, text_.data() + written_, chunk_ ? std::min(rest, chunk_) : rest);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && errno == EAGAIN) break;
    if (length < 0) {
      error_ = fmt::format("can no longer write to {} ({}); the job continues, but further output there is dropped",
                           name_, std::strerror(errno));
      broken_ = true;
      text_.clear();
      written_ = 0;
      return;
    }
    written_ += static_cast<size_t>(length);
    if (chunk_) break;
  }
  if (empty() || written_ >= kFull) {
    text_.erase(0, written_);
    written_ = 0;
  }
}

std::string OutputSink::take_error() { return std::exchange(error_, {}); }

}  // namespace concord
