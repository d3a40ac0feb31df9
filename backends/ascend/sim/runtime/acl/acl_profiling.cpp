// Functions that torch_npu links and that are not simulated: profiles, dumps, logs of the vendor, kernels as binaries.
// Profiles and dumps record nothing; loading a kernel fails.
#include <chrono>
#include <cstdint>

#include "backends/ascend/sim/runtime/acl/acl.h"
#include "backends/ascend/sim/runtime/error.h"

using namespace concord::ascend::abi;
using namespace concord::ascend::sim;

namespace {

int32_t refuse_kernel(const char* function) {
  return guarded(function,
                 [] { fail(kRtFeatureNotSupport, "kernels for the device's own processors are not simulated"); });
}

}  // namespace

extern "C" {

CONCORD_SIM_EXPORT uint64_t MsprofGetHashId(const char* text, size_t length) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (size_t i = 0; text != nullptr && i < length; ++i) hash = (hash ^ static_cast<uint8_t>(text[i])) * 1099511628211u;
  return hash;
}
CONCORD_SIM_EXPORT int32_t MsprofRegisterCallback(uint32_t, void*) { return 0; }
CONCORD_SIM_EXPORT int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { return 0; }
CONCORD_SIM_EXPORT int32_t MsprofReportApi(uint32_t, const void*) { return 0; }
CONCORD_SIM_EXPORT int32_t MsprofReportCompactInfo(uint32_t, const void*, uint32_t) { return 0; }
CONCORD_SIM_EXPORT uint64_t MsprofSysCycleTime(void) {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

CONCORD_SIM_EXPORT int32_t aclmdlInitDump() {
  return guarded(__func__, [] {});
}
CONCORD_SIM_EXPORT int32_t aclmdlSetDump(const char*) {
  return guarded(__func__, [] {});
}
CONCORD_SIM_EXPORT int32_t aclmdlFinalizeDump() {
  return guarded(__func__, [] {});
}
CONCORD_SIM_EXPORT void aclAppLog(int32_t, const char*, const char*, uint32_t, const char*, ...) {}

CONCORD_SIM_EXPORT int32_t aclrtBinaryLoadFromData(const void*, size_t, const void*, void**) {
  return refuse_kernel(__func__);
}
CONCORD_SIM_EXPORT int32_t aclrtBinaryGetFunction(const void*, const char*, void**) { return refuse_kernel(__func__); }
CONCORD_SIM_EXPORT int32_t aclrtGetFunctionAddr(void*, void**, void**) { return refuse_kernel(__func__); }
CONCORD_SIM_EXPORT int32_t rtDevBinaryRegister(const void*, void**) { return refuse_kernel(__func__); }
CONCORD_SIM_EXPORT int32_t rtFunctionRegister(void*, const void*, const char*, const void*, uint32_t) {
  return refuse_kernel(__func__);
}
CONCORD_SIM_EXPORT int32_t rtGetC2cCtrlAddr(uint64_t*, uint32_t*) { return refuse_kernel(__func__); }
CONCORD_SIM_EXPORT int32_t rtKernelLaunch(const void*, uint32_t, void*, uint32_t, void*, void*) {
  return refuse_kernel(__func__);
}
}
