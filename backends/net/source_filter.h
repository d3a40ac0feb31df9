// A kernel filter for listening sockets of libraries that do not authenticate peers, such as UCX.
#pragma once

#include <span>

#include "backends/net/connection.h"

namespace concord::net {

// Makes |listener| accept connections from |sources| only; packets of other hosts are dropped before. More than 256
// IPv4 or 64 IPv6 addresses are widened to their networks (/24, then /16, ...). Returns false if the kernel rejects the
// filter.
bool admit_only(int listener, std::span<const Address> sources);

}  // namespace concord::net
