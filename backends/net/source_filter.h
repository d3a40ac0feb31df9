// A filter in the kernel for listening sockets of libraries that authenticate nobody, as UCX's.
#pragma once

#include <span>

#include "backends/net/connection.h"

namespace concord::net {

// From now on |listener| takes connections from |sources| only; packets of other hosts are dropped before anything is
// accepted. More than 256 IPv4 or 64 IPv6 addresses are widened to the networks they are in (/24, then /16, ...).
// Returns false if the kernel refuses the filter.
bool admit_only(int listener, std::span<const Address> sources);

}  // namespace concord::net
