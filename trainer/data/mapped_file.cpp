#include "trainer/data/mapped_file.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"

namespace concord {

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const InputFile file(path_, "data must be in regular files, which are memory-mapped");
  if (file.size() == 0) return;
  void* const map = ::mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, file.fd(), 0);
  if (map == MAP_FAILED) {
    throw ConfigError(fmt::format("cannot map {} ({} bytes): {}", path_, file.size(), std::strerror(errno)));
  }
  size_ = static_cast<int64_t>(file.size());
  data_ = static_cast<const char*>(map);
  watch_ = MappingWatch(map, file.size(), path_);
}

MappedFile::~MappedFile() {
  watch_ = {};
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), static_cast<size_t>(size_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      size_(std::exchange(other.size_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      watch_(std::move(other.watch_)) {}

}  // namespace concord
