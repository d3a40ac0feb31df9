#include "trainer/data/mapped_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/config_error.h"

namespace concord {

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw ConfigError(fmt::format("cannot open {}: {}", path_, std::strerror(errno)));
  struct stat status = {};
  const bool regular = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  void* map = nullptr;
  if (regular && status.st_size > 0) {
    map = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, fd, 0);
  }
  const int mapping_error = errno;
  ::close(fd);
  if (!regular) throw ConfigError(fmt::format("{} is not a regular file; data is read by memory map", path_));
  if (map == MAP_FAILED) {
    throw ConfigError(fmt::format("cannot map {} ({} bytes): {}", path_, status.st_size, std::strerror(mapping_error)));
  }
  size_ = status.st_size;
  data_ = static_cast<const char*>(map);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), static_cast<size_t>(size_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), size_(std::exchange(other.size_, 0)), data_(std::exchange(other.data_, nullptr)) {}

}  // namespace concord
