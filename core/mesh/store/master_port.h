// The port at which the processes of a job meet.
#pragma once

#include "platform/base/unique_fd.hpp"

namespace concord {

// A port that was free when it was chosen and stays reserved for this job during the lifetime of this object. The
// socket is bound but does not listen, so the port is not given to other processes, while a server that sets
// SO_REUSEADDR (like c10d's TCPStore) can listen on it. A program whose server does not set it needs a port chosen by
// the user.
class HeldPort {
 public:
  HeldPort();  // throws std::system_error
  int port() const { return port_; }

 private:
  UniqueFd socket_;
  int port_ = 0;
};

// Returns false if some process listens on |port| of this machine.
bool port_is_free(int port);

}  // namespace concord
