#include "backends/cuda/nccl/nccl.h"

#include <iterator>
#include <vector>

#include "backends/cuda/torch_sibling_libraries.h"

namespace concord::cuda {
namespace {

constexpr const char* kSoname = "libnccl.so.2";
// ncclGetVersion's numbers. Within a major, NCCL keeps its ABI; newer minors than these are untested.
constexpr int kOldest = 21900;
constexpr int kBeyondNewest = 23100;

std::vector<std::string> candidates() {
  if (const char* chosen = sdk::config("cuda.nccl")) return {chosen};  // an explicit choice that fails is an error
  std::vector<std::string> paths = torch_sibling_libraries(std::string("nccl/lib/") + kSoname);
  paths.emplace_back(kSoname);
  return paths;
}

sdk::VendorLibrary find_library() {
  if (void* loaded = dlopen(kSoname, RTLD_NOW | RTLD_NOLOAD)) {
    return {loaded, sdk::library_path(loaded, "ncclGetVersion", kSoname)};
  }
  return sdk::open_vendor_library(
      "NCCL", candidates(), "ncclGetVersion",
      "install NCCL 2.19 to 2.30, or set CONCORD_CUDA_NCCL to the path of its libnccl.so.2");
}

int checked_version(const sdk::VendorLibrary& library) {
  const auto get_version = sdk::find_symbol<decltype(&ncclGetVersion)>(library, "ncclGetVersion");
  int version = 0;
  if (get_version == nullptr || get_version(&version) != ncclSuccess) {
    sdk::fail(CONCORD_STATUS_UNAVAILABLE,
              sdk::text("%s does not report its version (ncclGetVersion); is it NCCL?", library.path.c_str()));
  }
  if (version < kOldest || version >= kBeyondNewest) {
    sdk::fail(CONCORD_STATUS_UNAVAILABLE, sdk::text("%s is NCCL %s; versions 2.19 to 2.30 are supported",
                                                    library.path.c_str(), version_text(version).c_str()));
  }
  return version;
}

const char* name_of(ncclResult_t result) {
  constexpr const char* kNames[] = {"ncclSuccess",       "ncclUnhandledCudaError", "ncclSystemError",
                                    "ncclInternalError", "ncclInvalidArgument",    "ncclInvalidUsage",
                                    "ncclRemoteError",   "ncclInProgress"};
  const int code = static_cast<int>(result);
  return code >= 0 && code < static_cast<int>(std::size(kNames)) ? kNames[code] : "a code unknown to this plugin";
}

}  // namespace

std::string version_text(int version) {
  return sdk::text("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

Nccl load_nccl() {
  const sdk::VendorLibrary library = find_library();
  Nccl nccl;
  nccl.version = checked_version(library);
  nccl.path = library.path;
  const sdk::VendorSymbol symbols[] = {
#define CONCORD_REQUIRED(name) sdk::required_symbol(#name, &nccl.name),
#define CONCORD_OPTIONAL(name, ...) sdk::optional_symbol(#name, &nccl.name),
#include "backends/cuda/nccl/symbols.inc"
#undef CONCORD_REQUIRED
#undef CONCORD_OPTIONAL
  };
  sdk::resolve_symbols(library, symbols);
  return nccl;
}

concord_status status_of(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return CONCORD_STATUS_OK;
    case ncclInvalidArgument:
    case ncclInvalidUsage: return CONCORD_STATUS_INVALID_ARGUMENT;
    case ncclRemoteError: return CONCORD_STATUS_PEER_LOST;
    default: return CONCORD_STATUS_VENDOR_ERROR;
  }
}

std::string describe(const Nccl& nccl, ncclResult_t result, const char* call, ncclComm_t comm) {
  const char* message = nccl.ncclGetErrorString(result);
  const char* last = nccl.ncclGetLastError(comm);
  std::string sentence = sdk::text("%s failed with %d, %s: %s", call, static_cast<int>(result), name_of(result),
                                   message != nullptr ? message : "no message");
  if (last != nullptr && last[0] != '\0') sentence += sdk::text("; NCCL's last error: %s", last);
  while (!sentence.empty() && sentence.back() == '\n') sentence.pop_back();
  return sentence;
}

void check_nccl(const Nccl& nccl, ncclResult_t result, const char* call, ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  sdk::fail(status_of(result), describe(nccl, result, call, comm));
}

}  // namespace concord::cuda
