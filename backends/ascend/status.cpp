#include "backends/ascend/status.h"

#include <algorithm>
#include <iterator>

namespace concord::ascend {
namespace {

struct Code {
  abi::aclError error;
  concord_status status;
  const char* name;
};

constexpr Code kCodes[] = {
    {abi::kAclSuccess, CONCORD_STATUS_OK, "ACL_SUCCESS"},
    {abi::kAclInvalidParam, CONCORD_STATUS_INVALID_ARGUMENT, "ACL_ERROR_INVALID_PARAM"},
    {abi::kAclUninitialize, CONCORD_STATUS_UNAVAILABLE, "ACL_ERROR_UNINITIALIZE"},
    {abi::kAclRepeatInitialize, CONCORD_STATUS_INTERNAL, "ACL_ERROR_REPEAT_INITIALIZE"},
    {abi::kAclRepeatFinalize, CONCORD_STATUS_INTERNAL, "ACL_ERROR_REPEAT_FINALIZE"},
    {abi::kAclBadAlloc, CONCORD_STATUS_OUT_OF_MEMORY, "ACL_ERROR_BAD_ALLOC"},
    {abi::kAclApiNotSupport, CONCORD_STATUS_UNIMPLEMENTED, "ACL_ERROR_API_NOT_SUPPORT"},
    {abi::kAclFeatureUnsupported, CONCORD_STATUS_UNIMPLEMENTED, "ACL_ERROR_FEATURE_UNSUPPORTED"},
    {abi::kAclStorageOverLimit, CONCORD_STATUS_OUT_OF_MEMORY, "ACL_ERROR_STORAGE_OVER_LIMIT"},
    {abi::kAclInternalError, CONCORD_STATUS_VENDOR_ERROR, "ACL_ERROR_INTERNAL_ERROR"},
    {abi::kRtParamInvalid, CONCORD_STATUS_INVALID_ARGUMENT, "ACL_ERROR_RT_PARAM_INVALID"},
    {abi::kRtInvalidDeviceId, CONCORD_STATUS_INVALID_ARGUMENT, "ACL_ERROR_RT_INVALID_DEVICEID"},
    {abi::kRtContextNull, CONCORD_STATUS_INTERNAL, "ACL_ERROR_RT_CONTEXT_NULL"},
    {abi::kRtStreamContext, CONCORD_STATUS_INVALID_ARGUMENT, "ACL_ERROR_RT_STREAM_CONTEXT"},
    {abi::kRtEventTimestampInvalid, CONCORD_STATUS_FAILED_PRECONDITION, "ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID"},
    {abi::kRtEventTimestampReversal, CONCORD_STATUS_FAILED_PRECONDITION, "ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL"},
    {abi::kRtInvalidHandle, CONCORD_STATUS_INVALID_ARGUMENT, "ACL_ERROR_RT_INVALID_HANDLE"},
    {abi::kRtWaitTimeout, CONCORD_STATUS_TIMEOUT, "ACL_ERROR_RT_WAIT_TIMEOUT"},
    {abi::kRtTaskTimeout, CONCORD_STATUS_TIMEOUT, "ACL_ERROR_RT_TASK_TIMEOUT"},
    {abi::kRtDeviceTaskAbort, CONCORD_STATUS_ABORTED, "ACL_ERROR_RT_DEVICE_TASK_ABORT"},
    {abi::kRtStreamAbort, CONCORD_STATUS_ABORTED, "ACL_ERROR_RT_STREAM_ABORT"},
    {abi::kRtFeatureNotSupport, CONCORD_STATUS_UNIMPLEMENTED, "ACL_ERROR_RT_FEATURE_NOT_SUPPORT"},
    {abi::kRtMemoryAllocation, CONCORD_STATUS_OUT_OF_MEMORY, "ACL_ERROR_RT_MEMORY_ALLOCATION"},
    {abi::kRtNoDevice, CONCORD_STATUS_UNAVAILABLE, "ACL_ERROR_RT_NO_DEVICE"},
    {abi::kRtNoEventResource, CONCORD_STATUS_OUT_OF_MEMORY, "ACL_ERROR_RT_NO_EVENT_RESOURCE"},
    {abi::kRtNoStreamResource, CONCORD_STATUS_OUT_OF_MEMORY, "ACL_ERROR_RT_NO_STREAM_RESOURCE"},
    {abi::kRtDeviceOom, CONCORD_STATUS_OUT_OF_MEMORY, "ACL_ERROR_RT_DEVICE_OOM"},
    {abi::kRtInternalError, CONCORD_STATUS_VENDOR_ERROR, "ACL_ERROR_RT_INTERNAL_ERROR"},
    {abi::kRtEventNotComplete, CONCORD_STATUS_FAILED_PRECONDITION, "ACL_ERROR_RT_EVENT_NOT_COMPLETE"},
    {abi::kRtAicoreTimeout, CONCORD_STATUS_VENDOR_ERROR, "ACL_ERROR_RT_AICORE_TIMEOUT"},
    {abi::kRtAicoreException, CONCORD_STATUS_VENDOR_ERROR, "ACL_ERROR_RT_AICORE_EXCEPTION"},
    {abi::kRtAicpuException, CONCORD_STATUS_VENDOR_ERROR, "ACL_ERROR_RT_AICPU_EXCEPTION"},
    {abi::kRtStreamSyncTimeout, CONCORD_STATUS_TIMEOUT, "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT"},
    {abi::kRtEventSyncTimeout, CONCORD_STATUS_TIMEOUT, "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT"},
    {abi::kRtDeviceMemError, CONCORD_STATUS_VENDOR_ERROR, "ACL_ERROR_RT_DEVICE_MEM_ERROR"},
    {abi::kRtHbmEcc, CONCORD_STATUS_VENDOR_ERROR, "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR"},
};

const Code* find(abi::aclError error) {
  const auto* found =
      std::find_if(std::begin(kCodes), std::end(kCodes), [&](const Code& c) { return c.error == error; });
  return found != std::end(kCodes) ? found : nullptr;
}

constexpr const char* kHcclNames[] = {"HCCL_SUCCESS",
                                      "HCCL_E_PARA",
                                      "HCCL_E_PTR",
                                      "HCCL_E_MEMORY",
                                      "HCCL_E_INTERNAL",
                                      "HCCL_E_NOT_SUPPORT",
                                      "HCCL_E_NOT_FOUND",
                                      "HCCL_E_UNAVAIL",
                                      "HCCL_E_SYSCALL",
                                      "HCCL_E_TIMEOUT",
                                      "HCCL_E_OPEN_FILE_FAILURE",
                                      "HCCL_E_TCP_CONNECT",
                                      "HCCL_E_ROCE_CONNECT",
                                      "HCCL_E_TCP_TRANSFER",
                                      "HCCL_E_ROCE_TRANSFER",
                                      "HCCL_E_RUNTIME",
                                      "HCCL_E_DRV",
                                      "HCCL_E_PROFILING",
                                      "HCCL_E_CCE",
                                      "HCCL_E_NETWORK",
                                      "HCCL_E_AGAIN",
                                      "HCCL_E_REMOTE",
                                      "HCCL_E_SUSPENDING",
                                      "HCCL_E_OPRETRY_FAIL",
                                      "HCCL_E_OOM"};

const char* name_of(abi::HcclResult result) {
  return result < std::size(kHcclNames) ? kHcclNames[result] : "a code unknown to this plugin";
}

// Returns the vendor's message on one line. ACL's report can be pages of log, which begin with the cause.
std::string one_line(const char* message) {
  constexpr size_t kEnough = 600;
  std::string line = message != nullptr ? message : "";
  std::replace(line.begin(), line.end(), '\n', ' ');
  if (line.size() > kEnough) line = line.substr(0, kEnough) + "...";
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line.empty() ? "no message" : line;
}

}  // namespace

concord_status status_of(abi::aclError error) {
  const Code* code = find(error);
  return code != nullptr ? code->status : CONCORD_STATUS_VENDOR_ERROR;
}

concord_status status_of(abi::HcclResult result) {
  switch (result) {
    case abi::kHcclSuccess: return CONCORD_STATUS_OK;
    case abi::kHcclPara:
    case abi::kHcclPtr: return CONCORD_STATUS_INVALID_ARGUMENT;
    case abi::kHcclMemory:
    case abi::kHcclOom: return CONCORD_STATUS_OUT_OF_MEMORY;
    case abi::kHcclNotSupport: return CONCORD_STATUS_UNIMPLEMENTED;
    case abi::kHcclUnavail: return CONCORD_STATUS_UNAVAILABLE;
    case abi::kHcclTimeout: return CONCORD_STATUS_TIMEOUT;
    case abi::kHcclRemote: return CONCORD_STATUS_PEER_LOST;
    default: return CONCORD_STATUS_VENDOR_ERROR;
  }
}

std::string describe(const Acl& acl, abi::aclError error, const char* call) {
  const Code* code = find(error);
  return sdk::text("%s failed with %d, %s: %s", call, error,
                   code != nullptr ? code->name : "a code unknown to this plugin",
                   one_line(acl.aclGetRecentErrMsg()).c_str());
}

std::string describe(const Hccl& hccl, abi::HcclResult result, const char* call) {
  return sdk::text("%s failed with %u, %s: %s", call, static_cast<unsigned>(result), name_of(result),
                   one_line(hccl.HcclGetErrorString(result)).c_str());
}

void fail_acl(const Acl& acl, abi::aclError error, const char* call, const std::string& context) {
  std::string sentence = describe(acl, error, call);
  if (!context.empty()) sentence += "; " + context;
  sdk::fail(status_of(error), std::move(sentence));
}

void check_hccl(const Hccl& hccl, abi::HcclResult result, const char* call) {
  if (result != abi::kHcclSuccess) sdk::fail(status_of(result), describe(hccl, result, call));
}

}  // namespace concord::ascend
