#include "core/base/files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why, std::string_view wanted = {}) {
  throw ConfigError(path + ": " + why + (wanted.empty() ? "" : "; ") + std::string(wanted));
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

InputFile::InputFile(std::string path, std::string_view wanted) : path_(std::move(path)) {
  if (path_.find('\0') != std::string::npos) refuse(quoted(path_), "a path cannot contain a zero byte", wanted);
  fd_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd_) refuse(path_, std::string("cannot be opened: ") + std::strerror(errno), wanted);
  struct stat state{};
  const int error = ::fstat(fd_.get(), &state) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(state.st_mode)) {
    size_ = static_cast<uint64_t>(state.st_size);
    return;
  }
  if (error != 0) refuse(path_, std::string("cannot be inspected: ") + std::strerror(error));
  refuse(path_, std::string("is not a regular file but ") + kind_of(state.st_mode),
         wanted.empty() ? "only regular files can be read" : wanted);
}

std::string InputFile::read(uint64_t most, std::string_view kind) const {
  constexpr uint64_t kAtLeast = 4096;  // files in /proc report a size of 0
  std::string text;
  while (text.size() <= most) {
    const size_t had = text.size();
    text.resize(std::min(most + 1, std::max(had * 2, std::min(size_, most) + kAtLeast)));
    const ssize_t got = ::pread(fd_.get(), text.data() + had, text.size() - had, static_cast<off_t>(had));
    text.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(path_, std::string("cannot be read: ") + std::strerror(errno));
    if (got == 0) return text;
  }
  refuse(path_, "has " + std::to_string(std::max<uint64_t>(size_, text.size())) + " bytes; the limit for " +
                    std::string(kind) + " is " + std::to_string(most));
}

size_t InputFile::read_at(uint64_t place, std::span<std::byte> to) const {
  size_t had = 0;
  while (had < to.size()) {
    const ssize_t got = ::pread(fd_.get(), to.data() + had, to.size() - had, static_cast<off_t>(place + had));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::runtime_error(std::strerror(errno));
    if (got == 0) break;
    had += static_cast<size_t>(got);
  }
  return had;
}

}  // namespace concord
