// Opens input files for reading; all code uses this class. Accepts only regular files, also through links. Named pipes
// (open would wait for a writer), devices (which may never end) and folders are rejected without waiting. Threads: any,
// concurrently. Throws ConfigError with the path, its type and what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "platform/base/unique_fd.hpp"

namespace concord {

class InputFile {
 public:
  // |wanted| ends the error message by what to give instead: "give the path of a YAML file".
  explicit InputFile(std::string path, std::string_view wanted = {});

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  uint64_t size() const { return size_; }  // in bytes, at the time of opening

  // Returns the whole content. Throws ConfigError beyond |most| bytes, also if the file grows while it is read; |kind|
  // ("a configuration") names the content in the message.
  std::string read(uint64_t most, std::string_view kind) const;

  // Fills |to| with the bytes starting at |place|. Returns their number, which is smaller at the end of the file.
  // Throws std::runtime_error with the system's message, without the path.
  size_t read_at(uint64_t place, std::span<std::byte> to) const;

 private:
  std::string path_;
  UniqueFd fd_;
  uint64_t size_ = 0;
};

}  // namespace concord
