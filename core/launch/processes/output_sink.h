// Where output goes: standard output, standard error or a file. Accepts any amount at a time, writes as fast as the
// other side reads, and never blocks the launcher, which has to handle signals and exits. Not thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "platform/base/unique_fd.hpp"

namespace concord {

class OutputSink {
 public:
  // Writes to |fd|, which stays the caller's. Its own flags are left alone: they are shared with other processes.
  OutputSink(int fd, std::string name);
  // Writes to a file, after what it holds; throws std::system_error.
  explicit OutputSink(const std::string& path);

  void append(std::string_view bytes);
  bool full() const { return text_.size() - written_ >= kFull; }  // let it drain before reading more for it
  bool empty() const { return text_.size() == written_; }
  int fd() const { return fd_; }  // poll it for POLLOUT while not empty
  void write_some();              // never waits, provided that poll has said so

  // Returns the error of the sink, once; empty if there is none. A sink that fails (a reader that went away, a
  // full disk) drops all further output: the job is worth more than its log.
  std::string take_error();

 private:
  static constexpr size_t kFull = size_t{1} << 20;

  UniqueFd own_;
  int fd_ = -1;
  size_t chunk_ = 0;  // most bytes per write; 0 for a descriptor that can be relied on not to block
  std::string name_;
  std::string text_;
  size_t written_ = 0;
  std::string error_;
  bool broken_ = false;
};

}  // namespace concord
