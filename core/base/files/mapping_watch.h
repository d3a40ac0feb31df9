// Names the file if a mapping's data disappears. A mapped file that is truncated, or whose disk fails, ends a process
// that accesses the missing part with SIGBUS; within a watched mapping the process instead says which file that was,
// and ends with exit code 1. Other bus errors go to the previous handler.
//
// The first watch installs the handler, for the whole process. Threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace concord {

class MappingWatch {
 public:
  MappingWatch() = default;
  // Until it ends, before the mapping does. Where very many are watched already, this one is not.
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
