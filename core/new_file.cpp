#include "core/new_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/config_error.h"

namespace concord {
namespace {

std::string advice_about(int error) {
  if (error == ENOSPC) return "; free some space or choose another folder";
  if (error == EDQUOT) return "; the quota is used up: remove files, or choose another folder";
  if (error != EFBIG) return "";
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return "; the file system takes no larger files: choose another folder";
  return "; files may have " + std::to_string(limit.rlim_cur) +
         " bytes here: raise that limit (ulimit -f unlimited, LimitFSIZE= of systemd)";
}

}  // namespace

UniqueFd create_fresh_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return UniqueFd();
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
}

void check_replaceable(const std::string& path) {
  struct stat state{};
  if (::stat(path.c_str(), &state) != 0 || S_ISREG(state.st_mode)) return;
  throw ConfigError(path + ": is " +
                    (S_ISDIR(state.st_mode) ? "a folder; give the name of a file"
                                            : "a device or a pipe, which no file can take the place of; give the name "
                                              "of a file"));
}

std::string write_error_text(const std::string& path, int error) {
  return path + ": cannot be written: " + std::strerror(error) + advice_about(error);
}

}  // namespace concord
