#include "trainer/report/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace concord {
namespace {

[[noreturn]] void fail(const std::string& path, std::string_view what, int error) {
  const char* advice = error == ENOSPC || error == EDQUOT ? "; free some space or choose another output_dir" : "";
  throw std::runtime_error(fmt::format("{}: {}: {}{}", path, what, std::strerror(error), advice));
}

// 0, or the error that stopped it.
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

}  // namespace

AppendFile::AppendFile(std::string path, bool truncate) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (truncate ? O_TRUNC : 0), 0644);
  if (file_ < 0) fail(path_, "cannot be opened for writing", errno);
}

AppendFile::~AppendFile() { ::close(file_); }

void AppendFile::append(std::string_view bytes) {
  struct stat before{};
  if (::fstat(file_, &before) != 0) fail(path_, "cannot be written", errno);
  const int error = write_all(file_, bytes);
  if (error == 0) return;
  // What got in of the line goes out again; a device or a pipe cannot, which does not matter beside the first error.
  if (S_ISREG(before.st_mode) && ::ftruncate(file_, before.st_size) != 0) fail(path_, "half a line was left", errno);
  fail(path_, "cannot be written", error);
}

void replace_file(const std::string& path, std::string_view text) {
  const std::string beside = path + ".new";
  const int file = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) fail(beside, "cannot be opened for writing", errno);
  int error = write_all(file, text);
  if (error == 0 && ::fsync(file) != 0) error = errno;
  if (::close(file) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(beside.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  ::unlink(beside.c_str());
  fail(path, "cannot be written", error);
}

std::string read_if_there(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    if (errno != ENOENT) fail(path, "cannot be read", errno);
    return "";
  }
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) fail(path, "cannot be read", errno);
  return std::move(text).str();
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail(path, "cannot be made", error.value());
}

}  // namespace concord
