// Finds and loads the module with the engine for messages between hosts.
#pragma once

#include <memory>

#include "backends/net/transport.h"

namespace concord::net {

// Returns a port of the engine. Throws UNAVAILABLE, naming the missing library and the package that contains it.
std::unique_ptr<Port> open_port(const Opening& opening);

}  // namespace concord::net
