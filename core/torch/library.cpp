#include "core/torch/library.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>

#include "platform/abi/torch.h"
#include "platform/loader/error.h"

namespace concord::torch_side {
namespace {

namespace fs = std::filesystem;

// Returns the folder of the libtorch_cpu.so that this process uses.
fs::path torch_folder() {
  void* handle = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return {};  // cannot happen: this file links it
  link_map* map = nullptr;
  dlinfo(handle, RTLD_DI_LINKMAP, &map);
  fs::path folder = map != nullptr ? fs::path(map->l_name).parent_path() : fs::path();
  dlclose(handle);
  return folder;
}

// "libtorch_x.so" -> "torch_x".
std::string stem_of(const std::string& name) {
  const size_t begin = name.starts_with("lib") ? 3 : 0;
  return name.substr(begin, name.find(".so") - begin);
}

}  // namespace

std::vector<std::string> library_places(const std::string& name, const std::string& plugin_path) {
  if (name.find('/') != std::string::npos) return {name};
  std::vector<std::string> places;
  if (const fs::path torch = torch_folder(); !torch.empty()) {
    places.push_back((torch / name).string());
    places.push_back((torch.parent_path().parent_path() / stem_of(name) / "lib" / name).string());
  }
  places.push_back((fs::path(plugin_path).parent_path() / name).string());
  places.push_back(name);
  return places;
}

namespace {

// Loads |name| from the first path at which it exists.
void* load_file(const std::string& name, const std::string& plugin_path) {
  std::string tried;
  for (const std::string& place : library_places(name, plugin_path)) {
    const bool is_file = place.find('/') != std::string::npos;
    std::string reason = "no such file";
    if (!is_file || fs::exists(place)) {
      void* const handle = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);
      if (handle != nullptr) return handle;
      const char* message = dlerror();
      reason = message != nullptr ? message : "dlopen failed without an error message";
    }
    tried += "\n  " + place + ": " + reason;
  }
  throw Error(CONCORD_STATUS_UNAVAILABLE, "cannot load " + name +
                                              ", which libtorch needs for this device; tried:" + tried +
                                              "\ninstall the matching libtorch, or add its folder to LD_LIBRARY_PATH");
}

// The arguments for the hook of a library.
struct Host {
  explicit Host(const std::string& plugin) : plugin_path(plugin) {
    table = {sizeof table, 0, folder.c_str(), this, &Host::load};
  }
  static const char* load(void* self, const char* name) {
    auto* const host = static_cast<Host*>(self);
    try {
      load_library(name, host->plugin_path);
      return nullptr;
    } catch (const Error& error) {
      host->message = error.what();
      return host->message.c_str();
    }
  }

  const std::string& plugin_path;
  const std::string folder = torch_folder().string();
  std::string message;
  concord_torch_host table;
};

}  // namespace

void load_library(const std::string& name, const std::string& plugin_path) {
  void* const library = load_file(name, plugin_path);
  const auto open = reinterpret_cast<concord_torch_library_open_function>(dlsym(library, CONCORD_TORCH_LIBRARY_ENTRY));
  if (open == nullptr) return;
  Host host(plugin_path);
  if (const char* message = open(&host.table); message != nullptr) {
    throw Error(CONCORD_STATUS_UNAVAILABLE, name + ": " + message);
  }
}

}  // namespace concord::torch_side
