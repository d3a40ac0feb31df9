// Descriptors that shared libraries open when they are loaded and never close (libtorch's, on ARM, two dozen of sysfs).
// Child processes must not inherit them.
#pragma once

#include <bitset>

namespace concord {

// Marks every descriptor that is opened during its lifetime, around a dlopen, as close-on-exec. Earlier ones are
// unchanged. Threads: no other thread may open files meanwhile.
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
