#include "trainer/torch_module/terminal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "trainer/torch_module/table.h"

namespace concord {

int open_terminal(bool json) {
  if (json) return STDERR_FILENO;
  const char* name = std::getenv(kTerminalVariable);
  if (name == nullptr) return STDOUT_FILENO;
  const int descriptor = open(name, O_WRONLY | O_NOCTTY | O_CLOEXEC);
  return descriptor >= 0 ? descriptor : STDOUT_FILENO;
}

}  // namespace concord
