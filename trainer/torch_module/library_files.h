// Files that shared libraries open when they are loaded and never close (libtorch's, on ARM, two dozen of sysfs). They
// are not for the processes that this program starts.
#pragma once

#include <bitset>

namespace concord {

// Marks close-on-exec every descriptor that is opened while it lives: around a dlopen. What was open before stays
// unchanged. Threads: while no other one opens files.
class LibraryFiles {
 public:
  LibraryFiles();
  ~LibraryFiles();
  LibraryFiles(const LibraryFiles&) = delete;
  LibraryFiles& operator=(const LibraryFiles&) = delete;

 private:
  static constexpr int kDescriptors = 1024;  // libraries open the lowest free ones
  std::bitset<kDescriptors> open_before_;
};

}  // namespace concord
