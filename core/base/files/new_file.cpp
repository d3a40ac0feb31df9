#include "core/base/files/new_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/config_error.h"

namespace concord {
namespace {

std::string advice_about(int error) {
  if (error == ENOSPC) return "; free some space or choose another folder";
  if (error == EDQUOT) return "; the disk quota is exceeded: delete files, or choose another folder";
  if (error != EFBIG) return "";
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return "; the file system does not support larger files: choose another folder";
  return "; the file size limit is " + std::to_string(limit.rlim_cur) +
         " bytes: raise it (ulimit -f unlimited, LimitFSIZE= of systemd)";
}

}  // namespace

UniqueFd create_fresh_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return UniqueFd();
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
}

int write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

void check_replaceable(const std::string& path) {
  struct stat state{};
  if (::stat(path.c_str(), &state) != 0 || S_ISREG(state.st_mode)) return;
  throw ConfigError(path + ": is " +
                    (S_ISDIR(state.st_mode)
                         ? "a folder; give a file name"
                         : "a device or a pipe, which cannot be replaced by a file; give a file name"));
}

std::string write_error_text(const std::string& path, int error) {
  return path + ": cannot be written: " + std::strerror(error) + advice_about(error);
}

}  // namespace concord
