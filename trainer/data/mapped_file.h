// A file mapped for reading. It must not be truncated while it is open: accessing the missing part terminates the
// process with the file's name (core/base/files/mapping_watch.h). Concord's own writers never change a file in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/files/mapping_watch.h"

namespace concord {

// Threads: any, concurrently.
class MappedFile {
 public:
  // Throws ConfigError if |path| is not a regular file that can be read.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  const char* data() const { return data_; }  // null if the file is empty
  std::string_view text() const { return {data_, static_cast<size_t>(size_)}; }

 private:
  std::string path_;
  int64_t size_ = 0;
  const char* data_ = nullptr;
  MappingWatch watch_;
};

}  // namespace concord
