// Finds and loads the module with the engine for messages between hosts.
#pragma once

#include <memory>

#include "backends/net/transport.h"

namespace concord::net {

// A port of the engine. Throws UNAVAILABLE: says what is not installed, and which package has it.
std::unique_ptr<Port> open_port(const Opening& opening);

}  // namespace concord::net
