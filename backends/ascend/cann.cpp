#include "backends/ascend/cann.h"

#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "platform/sdk/symbol_table.hpp"

namespace concord::ascend {
namespace {

constexpr int kOldest = 801;  // major * 100 + minor
constexpr int kBeyondNewest = 1000;
constexpr const char* kSupported = "CANN 8.1 to 9.x is supported";
constexpr const char* kAdvice =
    "install CANN (8.1 to 9.x) and run `source set_env.sh` of its folder, which sets LD_LIBRARY_PATH and "
    "ASCEND_HOME_PATH";

// The names of |symbols| that |library| lacks. Slots that are already filled are unchanged.
std::string resolve(const sdk::VendorLibrary& library, std::span<const sdk::VendorSymbol> symbols) {
  std::string missing;
  for (const sdk::VendorSymbol& symbol : symbols) {
    void* address = nullptr;
    std::memcpy(&address, symbol.slot, sizeof address);
    if (address != nullptr) continue;
    address = dlsym(library.handle, symbol.name);
    std::memcpy(symbol.slot, &address, sizeof address);
    if (address == nullptr && symbol.required) missing += sdk::text("%s%s", missing.empty() ? "" : ", ", symbol.name);
  }
  return missing;
}

[[noreturn]] void fail_missing(const std::string& path, const std::string& missing) {
  sdk::fail(CONCORD_STATUS_UNAVAILABLE,
            sdk::text("%s has no %s; %s: %s", path.c_str(), missing.c_str(), kSupported, kAdvice));
}

// Checked before anything else is looked up: the version gives a better message than the names that are missing.
std::string checked_version(const sdk::VendorLibrary& library) {
  const auto get_version = sdk::find_symbol<fn::aclsysGetCANNVersion*>(library, "aclsysGetCANNVersion");
  abi::aclCANNPackageVersion version{};
  if (get_version == nullptr || get_version(abi::kPackageCann, &version) != abi::kAclSuccess) return "unknown";
  version.version[sizeof version.version - 1] = '\0';
  check_cann_version(version.version, library.path);
  return version.version;
}

std::string simulator_of(const sdk::VendorLibrary& library) {
  const auto label = sdk::find_symbol<const char* (*)()>(library, "concord_sim_label");
  return label != nullptr ? label() : "";
}

}  // namespace

std::vector<std::string> cann_candidates(const char* setting, const std::vector<std::string>& names) {
  if (const char* chosen = sdk::config(setting)) return {chosen};
  std::vector<std::string> paths = names;
  if (const char* home = std::getenv("ASCEND_HOME_PATH")) {
    for (const std::string& name : names) paths.push_back(std::string(home) + "/lib64/" + name);
  }
  return paths;
}

void check_cann_version(const std::string& version, const std::string& path) {
  int major = 0;
  int minor = 0;
  const bool numbers = std::sscanf(version.c_str(), "%d.%d", &major, &minor) == 2;
  const int found = major * 100 + minor;
  if (numbers && found >= kOldest && found < kBeyondNewest) return;
  sdk::fail(CONCORD_STATUS_UNAVAILABLE,
            sdk::text("%s belongs to CANN '%s'; %s: %s", path.c_str(), version.c_str(), kSupported, kAdvice));
}

Acl load_acl() {
  const sdk::VendorLibrary library = sdk::open_vendor_library(
      "CANN's runtime", cann_candidates("ascend.acl", {"libacl_rt.so", "libascendcl.so"}), "aclInit", kAdvice);
  Acl acl;
  acl.version = checked_version(library);
  acl.path = library.path;
  acl.simulator = simulator_of(library);
  const sdk::VendorSymbol symbols[] = {
#define CONCORD_ACL(name) sdk::required_symbol(#name, &acl.name),
#define CONCORD_ACL_OPTIONAL(name) sdk::optional_symbol(#name, &acl.name),
#include "backends/ascend/symbols.inc"
  };
  if (const std::string missing = resolve(library, symbols); !missing.empty()) fail_missing(library.path, missing);
  return acl;
}

Hccl load_hccl() {
  const sdk::VendorLibrary library =
      sdk::open_vendor_library("HCCL", cann_candidates("ascend.hccl", {"libhccl.so"}), "HcclAllReduce", kAdvice);
  Hccl hccl;
  hccl.path = library.path;
  const sdk::VendorSymbol symbols[] = {
#define CONCORD_HCCL(name) sdk::required_symbol(#name, &hccl.name),
#define CONCORD_HCCL_OPTIONAL(name) sdk::optional_symbol(#name, &hccl.name),
#include "backends/ascend/symbols.inc"
  };
  std::string missing = resolve(library, symbols);
  if (missing.empty()) return hccl;
  for (const std::string& name :
       cann_candidates("ascend.hcomm", {"libhcomm.so"})) {  // CANN 9 keeps communicators there
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    missing = resolve({handle, name}, symbols);
    if (missing.empty()) return hccl;
  }
  fail_missing(library.path, missing);
}

std::optional<Aclnn> load_aclnn(std::string* out_reason) {
  try {
    const sdk::VendorLibrary library = sdk::open_vendor_library(
        "CANN's operator library", cann_candidates("ascend.opapi", {"libopapi.so"}), "aclCreateTensor", kAdvice);
    Aclnn aclnn;
    const sdk::VendorSymbol symbols[] = {
#define CONCORD_ACLNN(name) sdk::required_symbol(#name, &aclnn.name),
#include "backends/ascend/symbols.inc"
    };
    const std::string missing = resolve(library, symbols);
    if (missing.empty()) return aclnn;
    *out_reason = library.path + " has no " + missing;
  } catch (const sdk::Failure& failure) {
    *out_reason = failure.what();
  }
  return std::nullopt;
}

}  // namespace concord::ascend
