#include "core/base/files/file_lock.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/base/config_error.h"

namespace concord {
namespace {

constexpr std::chrono::seconds kPatience{2};

}  // namespace

FileLock::FileLock(const std::string& path, const std::function<void()>& on_wait, const std::string& hint)
    : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666)) {
  if (!file_) throw ConfigError(fmt::format("cannot write {}: {}{}", path, std::strerror(errno), hint));
  const auto begin = std::chrono::steady_clock::now();
  bool is_said = !on_wait;
  // Polls instead of blocking in the kernel, since a signal handler of the program would not interrupt that.
  while (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      throw ConfigError(fmt::format("cannot lock {}: {}{}", path, std::strerror(errno), hint));
    if (!is_said && std::chrono::steady_clock::now() - begin > kPatience) {
      on_wait();
      is_said = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace concord
