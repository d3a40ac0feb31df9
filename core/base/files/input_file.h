// Opens files from outside for reading; all code uses this. Only regular files (through links too) are accepted.
// A named pipe would make open wait for a writer, a device may never end, a folder cannot be read; all of them are
// refused without waiting. Threads: any, at the same time. Throws ConfigError with the path, what it is and what to do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "platform/base/unique_fd.hpp"

namespace concord {

class InputFile {
 public:
  // |wanted| says what to give instead and ends the sentence: "give the path of a YAML file".
  explicit InputFile(std::string path, std::string_view wanted = {});

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  uint64_t size() const { return size_; }  // in bytes, when it was opened

  // All of it. Refuses more than |most| bytes, of which |kind| ("a configuration") has no more, even if the file
  // grows meanwhile.
  std::string read(uint64_t most, std::string_view kind) const;

 private:
  std::string path_;
  UniqueFd fd_;
  uint64_t size_ = 0;
};

}  // namespace concord
