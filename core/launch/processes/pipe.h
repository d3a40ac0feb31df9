// A pipe whose two ends have owners.
#pragma once

#include "platform/base/unique_fd.hpp"

namespace concord {

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Pipe make_pipe();  // both ends close on exec; throws std::system_error

void set_nonblocking(int fd);  // throws std::system_error

}  // namespace concord
