// Addresses of hosts, and the TCP sockets of backends/net; messages go over them by SealedConnection.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "platform/base/unique_fd.hpp"

namespace concord::net {

using Address = std::array<unsigned char, 16>;  // IPv6, or IPv4 in its mapped form

std::string to_text(const Address& address);

// Returns a socket that listens on a free port of |address|, or of all addresses of this host. Throws UNAVAILABLE.
UniqueFd listen_on(const std::optional<Address>& address, uint16_t* out_port);
// Returns a new connection to |listener|, empty if there is none.
UniqueFd accept_from(const UniqueFd& listener);
// Returns a connection to |address|; empty, with an errno in |out_error|, if there is no answer within |patience|.
UniqueFd connect_to(const Address& address, uint16_t port, std::chrono::milliseconds patience, int* out_error);

}  // namespace concord::net
