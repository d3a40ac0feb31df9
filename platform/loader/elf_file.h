// Checks a plugin's file before the dynamic linker sees it, for better messages than its own, and because a file that
// was truncated would end the process with SIGBUS.
#pragma once

#include <string>

namespace concord::loader {

// Why |path| cannot be a plugin for this machine; empty if it can be.
std::string why_not_loadable(const std::string& path);

}  // namespace concord::loader
