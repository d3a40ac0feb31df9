// A file that appears complete or not at all: written under a temporary name next to the final one, renamed at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/unique_fd.hpp"

namespace concord {

// Threads: one at a time. I/O errors (a full disk) throw std::runtime_error with the file and the system's message; the
// temporary file is removed with the object.
class OutputFile {
 public:
  // Throws ConfigError if the folder cannot be written to, or |path| is not a regular file.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* bytes, size_t count);
  void write(std::string_view text) { write(text.data(), text.size()); }
  int64_t size() const { return size_; }  // bytes written so far

  // Makes everything durable, still under the temporary name.
  void sync();
  // Renames the file, replacing an existing one. Call after sync().
  void publish();

 private:
  void flush();

  std::string path_;
  std::string temporary_;
  UniqueFd fd_;
  int64_t size_ = 0;
  std::vector<char> buffer_;
};

}  // namespace concord
