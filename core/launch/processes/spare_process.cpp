#include "core/launch/processes/spare_process.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>

namespace concord {
namespace {

// Until the end of the stream.
std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t length = ::read(fd, buffer, sizeof buffer);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) ::_exit(1);  // not 0: the launcher may take it for a rank
    if (length == 0) return text;
    text.append(buffer, static_cast<size_t>(length));
  }
}

}  // namespace

void set_environment(const std::string& text) {
  ::clearenv();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    const std::string entry = text.substr(begin, end - begin);
    if (const size_t equals = entry.find('='); equals != std::string::npos && equals > 0) {
      ::setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
    }
    begin = end + 1;
  }
}

bool is_spare() {
  const char* value = std::getenv(kSpareVariable);
  return value != nullptr && *value != 0;
}

void wait_to_become_a_rank() {
  const char ready = 'r';
  if (::send(STDIN_FILENO, &ready, 1, MSG_NOSIGNAL) != 1) ::_exit(1);
  const std::string environment = read_all(STDIN_FILENO);
  if (environment.empty()) ::_exit(0);
  set_environment(environment);
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0 || ::dup2(null, STDIN_FILENO) < 0) ::_exit(1);
  ::close(null);
}

}  // namespace concord
