// Collectives in Python: the groups of a job (concord.ParallelContext.group) and communicators of one's own
// (concord.current_platform.Communicator).
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "core/mesh/process_group.h"

namespace concord {

// Returns the group called |kind|: "tp", "dp" and so on (core/mesh/rank_layout.h), or "world". Throws ConfigError with
// the names if there is none, and as parallel_context() does.
ProcessGroup& group_called(const std::string& kind);

// Adds ProcessGroup and Work to the module, and Communicator to its Platform.
void bind_groups(pybind11::module_& module);

}  // namespace concord
