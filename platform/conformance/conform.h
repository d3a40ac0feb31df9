// The entry of the kit, for its program, concord-conform.
#pragma once

#include <string>
#include <vector>

namespace concord::conformance {

// |self| starts this entry again, in a new process: the program and the arguments that come before |arguments|.
// Returns the exit code: 0 conformant, 1 not conformant or nothing ran, 2 wrong usage.
int conform_main(const std::vector<std::string>& self, const std::vector<std::string>& arguments);

}  // namespace concord::conformance
