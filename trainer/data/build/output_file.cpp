#include "trainer/data/build/output_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/files/new_file.h"

namespace concord {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

[[noreturn]] void fail(const std::string& path) { throw std::runtime_error(write_error_text(path, errno)); }

void write_all(int fd, const char* bytes, size_t count, const std::string& path) {
  while (count > 0) {
    const ssize_t written = ::write(fd, bytes, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path);
    bytes += written;
    count -= static_cast<size_t>(written);
  }
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".partial") {
  check_replaceable(path_);
  fd_ = create_fresh_file(temporary_);
  if (!fd_) throw ConfigError(fmt::format("cannot create {}: {}", temporary_, std::strerror(errno)));
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (fd_) ::unlink(temporary_.c_str());
}

void OutputFile::write(const void* bytes, size_t count) {
  size_ += static_cast<int64_t>(count);
  if (buffer_.size() + count > kBufferBytes) flush();
  const char* const begin = static_cast<const char*>(bytes);
  if (count > kBufferBytes) {
    write_all(fd_.get(), begin, count, temporary_);
  } else {
    buffer_.insert(buffer_.end(), begin, begin + count);
  }
}

void OutputFile::flush() {
  write_all(fd_.get(), buffer_.data(), buffer_.size(), temporary_);
  buffer_.clear();
}

void OutputFile::sync() {
  flush();
  if (::fsync(fd_.get()) != 0) fail(temporary_);
}

void OutputFile::publish() {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_);
  fd_.reset();
  // The name is durable only after its folder is synced; a file system without that can lose only the name.
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  const UniqueFd folder_fd(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder_fd) ::fsync(folder_fd.get());
}

}  // namespace concord
