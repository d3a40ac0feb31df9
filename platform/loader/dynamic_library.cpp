#include "platform/loader/dynamic_library.h"

#include <dlfcn.h>

#include "platform/loader/error.h"
#include "platform/loader/text.h"

namespace concord::loader {

DynamicLibrary DynamicLibrary::open(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* message = dlerror();
    throw Error(CONCORD_STATUS_UNAVAILABLE,
                cat("the dynamic linker rejects it: ", message != nullptr ? message : "no reason given"));
  }
  return DynamicLibrary(handle);
}

void* DynamicLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

}  // namespace concord::loader
