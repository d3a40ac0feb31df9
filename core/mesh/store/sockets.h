// TCP sockets as the processes of a job open them: to listen where the others look, and to connect.
#pragma once

#include <chrono>
#include <string>

#include "platform/base/unique_fd.hpp"

namespace concord {

struct Listener {
  UniqueFd socket;      // none where |error| says why
  std::string address;  // by which this machine reaches it
  int error = 0;        // an errno
};

// Listens only at |host| if that is an address of this machine: nobody else can connect. A name may resolve to a
// different address on other machines (Debian's 127.0.1.1), and an address may be a router's or a service's: then it
// listens everywhere.
Listener listen_on(const std::string& host, int port);

// One attempt to connect, at most |limit| for each address of |host|. A non-blocking socket; none where |reason| says
// why.
UniqueFd connect_once(const std::string& host, int port, std::chrono::milliseconds limit, std::string* reason);

// The address that |socket| is connected to, as numbers: "10.0.0.7". Empty if it is not connected any more.
std::string peer_address(const UniqueFd& socket);
// That of this end.
std::string own_address(const UniqueFd& socket);
int own_port(const UniqueFd& socket);  // 0 if it has none

// Makes the kernel end the connection with ETIMEDOUT when the other machine has not answered for kMachineSilence,
// although nothing is sent: the kernel probes it every second. A process that is stopped still answers: its kernel
// does.
inline constexpr std::chrono::seconds kMachineSilence{3};
void end_when_silent(const UniqueFd& socket);

// Unix sockets of this machine (of this network namespace) by name, in no folder. connect_unix gives up, and says why,
// if another user's process listens there.
Listener listen_on_unix(const std::string& name);
UniqueFd connect_unix(const std::string& name, std::string* reason);

}  // namespace concord
