// Listening and connecting TCP and Unix sockets of the processes of a job.
#pragma once

#include <chrono>
#include <string>

#include "platform/base/unique_fd.hpp"

namespace concord {

struct Listener {
  UniqueFd socket;      // invalid if |error| is set
  std::string address;  // by which this machine reaches it
  int error = 0;        // an errno
};

// Listens only on |host| if that is an address of this machine, so that no other machine can connect. Otherwise listens
// on all addresses: a name may resolve to a different address on other machines (Debian's 127.0.1.1), and an address
// may belong to a router or a service.
Listener listen_on(const std::string& host, int port);

// Tries once to connect, for at most |limit| per address of |host|. Returns a non-blocking socket, or an invalid one
// and sets |reason|.
UniqueFd connect_once(const std::string& host, int port, std::chrono::milliseconds limit, std::string* reason);

// Returns the numeric address that |socket| is connected to: "10.0.0.7". Empty if it is no longer connected.
std::string peer_address(const UniqueFd& socket);
// Returns the numeric address of this end.
std::string own_address(const UniqueFd& socket);
int own_port(const UniqueFd& socket);  // 0 if it has none

// Makes the kernel close the connection with ETIMEDOUT if the other machine has not replied for kMachineSilence, even
// if nothing is sent: the kernel probes it every second. A stopped process still replies, through its kernel.
inline constexpr std::chrono::seconds kMachineSilence{3};
void end_when_silent(const UniqueFd& socket);

// Abstract Unix sockets of this machine (of this network namespace). connect_unix fails and sets |reason| if a process
// of another user listens there.
Listener listen_on_unix(const std::string& name);
UniqueFd connect_unix(const std::string& name, std::string* reason);

}  // namespace concord
