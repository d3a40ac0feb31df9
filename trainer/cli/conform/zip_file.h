// Writes a zip archive: files by name, deflated. Threads: one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace concord {

class ZipFile {
 public:
  // Adds a file. Names use '/' and are relative. Throws std::runtime_error for 4 GiB or more, which the format's plain
  // form cannot hold.
  void add(const std::string& name, std::string_view content);

  // Returns the archive with all files added so far.
  std::string archive() const;

 private:
  struct Entry {
    std::string name;
    uint32_t checksum, deflated_bytes, bytes, offset;
  };

  std::string bytes_;  // headers and contents, in the order of the files
  std::vector<Entry> entries_;
};

}  // namespace concord
