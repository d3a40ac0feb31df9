// dlopen and dlsym, with readable error messages. A library is never unloaded: its threads and handles may outlive it.
#pragma once

#include <string>

namespace concord::loader {

class DynamicLibrary {
 public:
  // RTLD_NOW: missing symbols are reported now and not in the middle of a run. RTLD_LOCAL: plugins do not see each
  // other. Throws Error (UNAVAILABLE) with the dynamic linker's message.
  static DynamicLibrary open(const std::string& path);

  void* symbol(const char* name) const;  // null if there is none
  void* handle() const { return handle_; }

 private:
  explicit DynamicLibrary(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace concord::loader
