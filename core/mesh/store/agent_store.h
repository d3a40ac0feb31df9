// Access to the store that torchrun's agent serves (c10d's TCPStore). Any process that reaches its port can read and
// write it, so ranks use it only to look up the address at which rank 0 serves the job's own store.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "core/mesh/job_environment.h"

namespace concord {

// Publishes |address|, sealed with the job's token. Waits: at most |timeout|. Throws Error.
void publish_address(const JobEnvironment& job, const std::string& address, std::chrono::milliseconds timeout);

// Returns the address that rank 0 has published. Values without its seal are ignored. Waits: until there is one, at
// most |timeout|. Throws Error.
std::string published_address(const JobEnvironment& job, std::chrono::milliseconds timeout);

}  // namespace concord
