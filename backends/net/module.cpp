#include "backends/net/module.h"

#include <dlfcn.h>

#include <string>

#include "platform/sdk/plugin.hpp"

namespace concord::net {
namespace {

constexpr const char* kModule = "libconcordnet_ucx.so";

// The folder of the library that this code is in.
std::string own_folder() {
  Dl_info here{};
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &here) == 0 || here.dli_fname == nullptr) return ".";
  const std::string path = here.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

OpenPort load(std::string* out_error) {
  const std::string path = own_folder() + "/" + kModule;
  void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    *out_error = ::dlerror();
    return nullptr;
  }
  void* found = ::dlsym(module, kOpenPort);
  if (found == nullptr) *out_error = ::dlerror();
  return reinterpret_cast<OpenPort>(found);
}

}  // namespace

std::unique_ptr<Port> open_port(const Opening& opening) {
  static std::string error;
  static const OpenPort open = load(&error);  // once: a module is never unloaded
  if (open == nullptr) {
    sdk::fail(CONCORD_STATUS_UNAVAILABLE,
              sdk::text("the ranks are on several hosts, and the cpu platform's messages between hosts need UCX: %s. "
                        "Install UCX on every host (Debian and Ubuntu: apt-get install libucx0); if %s itself is "
                        "missing, Concord was built without UCX's headers: install libucx-dev and build again",
                        error.c_str(), kModule));
  }
  char why[400] = {};
  std::unique_ptr<Port> port(open(opening, why, sizeof why));
  if (port == nullptr) sdk::fail(CONCORD_STATUS_UNAVAILABLE, why);
  return port;
}

}  // namespace concord::net
