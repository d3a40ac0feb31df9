// The port at which the processes of a job meet.
#pragma once

#include "platform/base/unique_fd.hpp"

namespace concord {

// A port that was free when asked, and stays this job's for as long as this lives: the socket is bound but does not
// listen, so no one is given the port by chance, while a server that sets SO_REUSEADDR (as c10d's TCPStore does) can
// listen on it. A program whose server does not set it needs a port of the user's choice.
class HeldPort {
 public:
  HeldPort();  // throws std::system_error
  int port() const { return port_; }

 private:
  UniqueFd socket_;
  int port_ = 0;
};

// False if some process listens on |port| of this machine.
bool port_is_free(int port);

}  // namespace concord
