// Vendor functions by name, for backends that look their library up at run time instead of linking it: one machine has
// it, another does not, and the plugin has to load on both. Header-only; needs dlopen.
//
// The functions are a list in a separate file, one line each, so that adding one is one line. A table is the list
// read twice: once as members, once as names.
//
// Example file symbols.inc:
//   CONCORD_REQUIRED(vendorOpen)                             // declared by the vendor's header
//   CONCORD_OPTIONAL(vendorTrim, int (*)(vendorHandle))      // newer than the oldest header: null if it is missing
//
// Example at file scope:
//   typedef struct vendorState* vendorHandle;                // these two are in the vendor's header
//   extern "C" int vendorOpen(vendorHandle* out_handle);
//   struct Vendor {
//   #define CONCORD_REQUIRED(name) decltype(&::name) name = nullptr;
//   #define CONCORD_OPTIONAL(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
//   #include "symbols.inc"
//   #undef CONCORD_REQUIRED
//   #undef CONCORD_OPTIONAL
//   };
//   void fill(Vendor& vendor, const concord::sdk::VendorLibrary& library) {
//     const concord::sdk::VendorSymbol symbols[] = {
//   #define CONCORD_REQUIRED(name) concord::sdk::required_symbol(#name, &vendor.name),
//   #define CONCORD_OPTIONAL(name, ...) concord::sdk::optional_symbol(#name, &vendor.name),
//   #include "symbols.inc"
//   #undef CONCORD_REQUIRED
//   #undef CONCORD_OPTIONAL
//     };
//     concord::sdk::resolve_symbols(library, symbols);
//   }
//
// Ask for the version first, with find_symbol: a version outside what the plugin knows makes a better sentence than the
// names that are missing in it.
#pragma once

#include <dlfcn.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "platform/sdk/plugin.hpp"

namespace concord::sdk {

// An opened vendor library. Never closed: its threads and handles may live as long as the process.
struct VendorLibrary {
  void* handle = nullptr;
  std::string path;  // the file it came from
};

// The file that |handle| was loaded from; |fallback| if the linker does not tell.
inline std::string library_path(void* handle, const char* symbol, const char* fallback) {
  Dl_info info{};
  void* address = dlsym(handle, symbol);
  if (address != nullptr && dladdr(address, &info) != 0 && info.dli_fname != nullptr) return info.dli_fname;
  return fallback;
}

// Opens the first of |candidates| that can be, by path or by name. UNAVAILABLE if none can: the message names
// |what|, every place tried with the linker's message, and |advice|.
inline VendorLibrary open_vendor_library(const char* what, const std::vector<std::string>& candidates,
                                         const char* symbol, const char* advice) {
  std::string tried;
  for (const std::string& candidate : candidates) {
    if (void* handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return {handle, library_path(handle, symbol, candidate.c_str())};
    }
    const char* reason = dlerror();
    tried += text("%s%s (%s)", tried.empty() ? "" : ", ", candidate.c_str(), reason != nullptr ? reason : "no reason");
  }
  fail(CONCORD_STATUS_UNAVAILABLE, text("%s was not found: tried %s; %s", what, tried.c_str(), advice));
}

// The function |name| of |library|, or null.
template <class Function>
Function find_symbol(const VendorLibrary& library, const char* name) {
  void* address = dlsym(library.handle, name);
  Function function = nullptr;
  static_assert(sizeof function == sizeof address);
  std::memcpy(&function, &address, sizeof function);
  return function;
}

// One line of a table: where the address goes. The slot is a function pointer, written as the void* it is made of.
struct VendorSymbol {
  const char* name;
  void* slot;
  bool required;
};

template <class Function>
VendorSymbol required_symbol(const char* name, Function** slot) {
  return {name, static_cast<void*>(slot), true};
}

template <class Function>
VendorSymbol optional_symbol(const char* name, Function** slot) {
  return {name, static_cast<void*>(slot), false};
}

// Fills every slot. UNAVAILABLE with all the required names that are missing.
inline void resolve_symbols(const VendorLibrary& library, std::span<const VendorSymbol> symbols) {
  std::string missing;
  for (const VendorSymbol& symbol : symbols) {
    void* address = dlsym(library.handle, symbol.name);
    std::memcpy(symbol.slot, &address, sizeof address);
    if (address == nullptr && symbol.required) missing += text("%s%s", missing.empty() ? "" : ", ", symbol.name);
  }
  if (!missing.empty()) {
    fail(CONCORD_STATUS_UNAVAILABLE, text("%s has no %s", library.path.c_str(), missing.c_str()));
  }
}

}  // namespace concord::sdk
