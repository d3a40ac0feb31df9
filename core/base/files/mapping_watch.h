// Reports the file if a mapping's data disappears. Accessing the missing part of a mapped file that was truncated, or
// whose disk failed, raises SIGBUS. Within a watched mapping the handler prints the path and the process exits with
// code 1. Other bus errors go to the previous handler.
//
// The first watch installs the handler for the whole process. Threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace concord {

class MappingWatch {
 public:
  MappingWatch() = default;
  // Watches the mapping until this object is destroyed, which must happen before munmap. If all slots are in use, does
  // nothing.
  MappingWatch(const void* begin, size_t bytes, const std::string& path);
  ~MappingWatch() { end(); }
  MappingWatch(MappingWatch&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}
  MappingWatch& operator=(MappingWatch&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }

 private:
  void end();

  int slot_ = -1;
};

}  // namespace concord
