#include "trainer/report/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "core/input_file.h"
#include "core/new_file.h"

namespace concord {
namespace {

constexpr uint64_t kMostBytes = uint64_t{4} << 30;

[[noreturn]] void fail(const std::string& path, std::string_view what, int error) {
  throw std::runtime_error(fmt::format("{}: {}: {}", path, what, std::strerror(error)));
}
[[noreturn]] void fail_to_write(const std::string& path, int error) {
  throw std::runtime_error(write_error_text(path, error));
}

}  // namespace

AppendFile::AppendFile(std::string path, bool truncate) : path_(std::move(path)) {
  // Symbolic links are not followed, and pipes are not waited for.
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  file_.reset(::open(path_.c_str(), flags | (truncate ? O_TRUNC : 0), 0666));
  if (!file_) fail(path_, "cannot be opened for writing", errno);
}

void AppendFile::append(std::string_view bytes) {
  check_there();
  struct stat before{};
  if (::fstat(file_.get(), &before) != 0) fail_to_write(path_, errno);
  const int error = write_all(file_.get(), bytes);
  if (error == 0) return;
  // Undo a partial write; a device or a pipe cannot be truncated, which does not matter after the first error.
  if (S_ISREG(before.st_mode) && ::ftruncate(file_.get(), before.st_size) != 0)
    fail(path_, "a partial line was left", errno);
  fail_to_write(path_, error);
}

void AppendFile::check_there() const {
  struct stat now{};
  if (::fstat(file_.get(), &now) == 0 && now.st_nlink > 0) return;
  throw std::runtime_error(path_ +
                           ": was deleted while the run was writing to it, and its contents are lost; do not touch the "
                           "output folder until the run has finished");
}

void replace_file(const std::string& path, std::string_view text) {
  check_replaceable(path);
  const std::string beside = path + ".new";
  UniqueFd file = create_fresh_file(beside);
  if (!file) fail(beside, "cannot be opened for writing", errno);
  int error = write_all(file.get(), text);
  if (error == 0 && ::fsync(file.get()) != 0) error = errno;
  if (::close(file.release()) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(beside.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  ::unlink(beside.c_str());
  fail_to_write(path, error);
}

std::string read_if_there(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return "";
  return InputFile(path).read(kMostBytes, "a file of metrics");
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail(path, "cannot be created", error.value());
}

}  // namespace concord
