// Loads the libraries that extend libtorch, by the names that a plugin gives. Only for device.cpp and its tests.
#pragma once

#include <string>
#include <vector>

namespace concord::torch_side {

// Returns the paths to try for |name|, in order: |name| itself if it contains a '/'; next to libtorch_cpu.so; in a
// wheel next to torch's (libtorch_x.so in torch_x/lib); next to the plugin at |plugin_path|; the dynamic linker's
// search path.
std::vector<std::string> library_places(const std::string& name, const std::string& plugin_path);

// Loads |name| globally, so that its operators register with the libtorch of this process, and never unloads it; then
// calls its hook, if it has one (platform/abi/torch.h). Throws Error (UNAVAILABLE) with every path and the dynamic
// linker's message, or with the library's own message.
void load_library(const std::string& name, const std::string& plugin_path);

}  // namespace concord::torch_side
