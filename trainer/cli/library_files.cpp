#include "trainer/cli/library_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <bitset>

namespace concord {
namespace {

constexpr int kDescriptors = 1024;  // libraries open the lowest free ones
std::bitset<kDescriptors> given;

// A library must not get the number of a standard stream that is closed: what is printed would go to its file.
void open_standard_streams() {
  int fd = 0;
  while ((fd = ::open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) {
  }
  if (fd > STDERR_FILENO) ::close(fd);
}

void note_given_descriptors(int, char**, char**) {
  open_standard_streams();
  for (int fd = 0; fd < kDescriptors; ++fd) given[static_cast<size_t>(fd)] = ::fcntl(fd, F_GETFD) != -1;
}

// Runs before the initialisers of all shared libraries, which only a program itself can ask for. A bitset of zeros
// needs no initialiser of its own.
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)(int, char**,
                                                                             char**) = note_given_descriptors;

}  // namespace

void close_library_files_on_exec() {
  for (int fd = 0; fd < kDescriptors; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags != -1 && !given[static_cast<size_t>(fd)]) ::fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  }
}

}  // namespace concord
