// A folder for the files of a fuzz target, in memory if possible; removed when the process exits.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/fuzz/check.h"

namespace concord::fuzz {

inline void write(const std::string& path, const void* bytes, size_t count) {
  FILE* const file = std::fopen(path.c_str(), "wb");
  check(file != nullptr && std::fwrite(bytes, 1, count, file) == count && std::fclose(file) == 0,
        "the file is written");
}

class Folder {
 public:
  Folder() {
    path_ =
        (::access("/dev/shm", W_OK) == 0 ? std::string("/dev/shm") : std::filesystem::temp_directory_path().string());
    path_ += "/concord_fuzz_XXXXXX";
    check(::mkdtemp(path_.data()) != nullptr, "the folder is made");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace concord::fuzz
