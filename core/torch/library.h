// Loads the libraries that extend libtorch, by the names that a plugin gives. Only for device.cpp and its tests.
#pragma once

#include <string>
#include <vector>

namespace concord::torch_side {

// Where |name| is looked for, in this order: as it is, where it has a '/'; next to libtorch_cpu.so; in a wheel of its
// own name next to torch's (libtorch_x.so in torch_x/lib); next to the plugin at |plugin_path|; where the dynamic
// linker looks.
std::vector<std::string> library_places(const std::string& name, const std::string& plugin_path);

// Loads |name| globally, so that its operators register with the libtorch of this process, and never unloads it; then
// lets it take part if it wants to (platform/abi/torch.h).
// Throws Error (UNAVAILABLE) with every place and the dynamic linker's message, or with what the library itself says.
void load_library(const std::string& name, const std::string& plugin_path);

}  // namespace concord::torch_side
