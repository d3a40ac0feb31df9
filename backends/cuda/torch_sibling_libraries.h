// Locates the NVIDIA libraries that pip installed alongside libtorch.
#pragma once

#include <link.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace concord::cuda {

// Returns the folder .../site-packages/torch of the libtorch in this process; "" if there is none.
inline std::string loaded_torch() {
  std::string folder;
  const auto look = [](dl_phdr_info* info, size_t, void* result) {
    const std::string_view path = info->dlpi_name != nullptr ? info->dlpi_name : "";
    constexpr std::string_view kEnd = "/lib/libtorch_cpu.so";
    if (!path.ends_with(kEnd)) return 0;
    *static_cast<std::string*>(result) = path.substr(0, path.size() - kEnd.size());
    return 1;
  };
  dl_iterate_phdr(look, &folder);
  return folder;
}

// Returns the paths of |file| ("nccl/lib/libnccl.so.2") next to the libtorch of this process and next to
// $CONCORD_TORCH.
inline std::vector<std::string> torch_sibling_libraries(const std::string& file) {
  std::vector<std::string> paths;
  if (const std::string torch = loaded_torch(); !torch.empty()) paths.push_back(torch + "/../nvidia/" + file);
  if (const char* torch = std::getenv("CONCORD_TORCH")) paths.push_back(std::string(torch) + "/../nvidia/" + file);
  return paths;
}

}  // namespace concord::cuda
