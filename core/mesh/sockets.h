// TCP sockets as the processes of a job open them: to listen where the others look, and to connect.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

#include "platform/base/unique_fd.hpp"

namespace concord {

struct Listener {
  UniqueFd socket;      // none where |error| says why
  std::string address;  // by which this machine reaches it
  int error = 0;        // an errno
};

// Listens only at |host| if that is an address of this machine: nobody else can connect. c10d also looks up the
// name of every peer, and 127.0.0.1 is in /etc/hosts; for ::ffff:127.0.0.1 it asks a name server, and jobs waited 5 s
// if an answer was lost. A name may resolve to another address here than elsewhere (Debian's 127.0.1.1), and an address
// may be a router's or a service's: then it listens everywhere.
Listener listen_on(const std::string& host, int port);

// One attempt to connect, at most |limit| for each address of |host|. A non-blocking socket; none where |reason| says
// why.
UniqueFd connect_once(const std::string& host, int port, std::chrono::milliseconds limit, std::string* reason);

// The address that |socket| is connected to, as numbers: "10.0.0.7". Empty if it is not connected any more.
std::string peer_address(const UniqueFd& socket);
// That of this end.
std::string own_address(const UniqueFd& socket);
int own_port(const UniqueFd& socket);  // 0 if it has none

// A connection on which nothing is sent: the kernel probes the other machine every second and ends it when that has not
// answered for kSilence. A process that is stopped still answers: its kernel does. Threads: any.
class HostPulse {
 public:
  static constexpr std::chrono::seconds kSilence{3};

  HostPulse() = default;  // never fails
  explicit HostPulse(UniqueFd socket);
  // Why the other machine cannot be reached, an errno; 0 if it can, and also where the other end just closed.
  int error();

 private:
  UniqueFd socket_;
  std::atomic<int> error_ = 0;
};

}  // namespace concord
