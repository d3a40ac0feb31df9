#include "trainer/report/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "core/base/files/input_file.h"
#include "core/base/files/new_file.h"

namespace concord {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{4} << 30;

[[noreturn]] void fail(const std::string& path, std::string_view what, int error) {
  throw std::runtime_error(fmt::format("{}: {}: {}", path, what, std::strerror(error)));
}
[[noreturn]] void fail_to_write(const std::string& path, int error) {
  throw std::runtime_error(write_error_text(path, error));
}

bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) || error;
}

}  // namespace

AppendFile::AppendFile(std::string path, bool truncate) : path_(std::move(path)) {
  // Does not follow symbolic links and does not wait for pipes.
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
  if (!is_there(path)) return "";
  return InputFile(path).read(kMaxBytes, "a file of metrics");
}

LineReader::LineReader(std::string path, size_t longest) : path_(std::move(path)), longest_(longest) {
  if (is_there(path_)) file_.emplace(path_);
}

std::optional<std::string_view> LineReader::next() {
  constexpr size_t kPiece = 1 << 16;
  for (size_t searched = begin_; file_;) {
    const size_t end = text_.find('\n', searched);
    if (end != std::string::npos) {
      const std::string_view line = std::string_view(text_).substr(begin_, end - begin_);
      begin_ = end + 1;
      ++number_;
      return line;
    }
    text_.erase(0, begin_);
    begin_ = 0;
    searched = text_.size();
    if (searched > longest_)
      throw std::runtime_error(fmt::format("{}:{}: a line of more than {} bytes", path_, number_ + 1, longest_));
    text_.resize(searched + kPiece);
    const ssize_t got = ::pread(file_->fd(), text_.data() + searched, kPiece, static_cast<off_t>(place_));
    text_.resize(searched + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, "cannot be read", errno);
    if (got == 0) file_.reset();
    place_ += static_cast<uint64_t>(std::max<ssize_t>(got, 0));
  }
  return std::nullopt;
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail(path, "cannot be created", error.value());
}

}  // namespace concord
