#include "trainer/torch_module/library_files.h"

#include <fcntl.h>
#include <unistd.h>

namespace concord {

LibraryFiles::LibraryFiles() {
  for (int fd = 0; fd < kDescriptors; ++fd) open_before_[static_cast<size_t>(fd)] = ::fcntl(fd, F_GETFD) != -1;
}

LibraryFiles::~LibraryFiles() {
  for (int fd = 0; fd < kDescriptors; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags != -1 && !open_before_[static_cast<size_t>(fd)]) ::fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  }
}

}  // namespace concord
