#include "trainer/torch_module/libtorch.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace concord {
namespace {

constexpr std::string_view kBuiltWith = CONCORD_TORCH_VERSION;  // "2.13.0"

std::string_view without_patch(std::string_view version) { return version.substr(0, version.rfind('.')); }

// Returns "2.13" from a wheel's header; empty if it has none, since the libraries alone do not contain it.
std::string version_in(const std::filesystem::path& folder) {
  std::ifstream header(folder / "include/torch/headeronly/version.h");
  std::string major, minor;
  for (std::string word; header >> word;) {
    if (word == "TORCH_VERSION_MAJOR" && major.empty()) header >> major;
    if (word == "TORCH_VERSION_MINOR" && minor.empty()) header >> minor;
  }
  return major.empty() || minor.empty() ? "" : fmt::format("{}.{}", major, minor);
}

}  // namespace

std::string load_named_libtorch() {
  const char* const named = std::getenv("CONCORD_TORCH");
  if (named == nullptr || *named == '\0') return "";
  const std::filesystem::path folder = named;
  if (const std::string version = version_in(folder); !version.empty() && version != without_patch(kBuiltWith)) {
    return fmt::format("CONCORD_TORCH is '{}', which is torch {}; this program was built with {}", named, version,
                       kBuiltWith);
  }
  for (const char* name : {"libc10.so", "libtorch_cpu.so"}) {
    if (dlopen((folder / "lib" / name).c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) continue;
    const char* message = dlerror();
    return fmt::format("CONCORD_TORCH is '{}', and its libtorch cannot be loaded: {}", named,
                       message != nullptr ? message : "no reason given");
  }
  return "";
}

std::string libtorch_advice() {
  return fmt::format(
      "libtorch {} is needed: set CONCORD_TORCH=/path/to/site-packages/torch (pip install torch=={}; python3 -c "
      "'import torch; print(torch.__path__[0])' prints the folder)",
      without_patch(kBuiltWith), kBuiltWith);
}

}  // namespace concord
