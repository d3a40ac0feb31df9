// concord-conform: the kit as a program. `concord conform` starts it; it also works without the rest of Concord.
#include <unistd.h>

#include <climits>
#include <string>
#include <vector>

#include "platform/conformance/conform.h"

int main(int argc, char** argv) {
  char path[PATH_MAX] = {};
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  const std::string self = length > 0 ? std::string(path, static_cast<size_t>(length)) : argv[0];
  return concord::conformance::conform_main({self}, std::vector<std::string>(argv + 1, argv + argc));
}
