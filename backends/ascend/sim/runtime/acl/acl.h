// The functions that libascendcl.so exports, for the files that define them and the tests that call them.
//
// Functions that the backend uses have types from acl_abi.h, which vendor_check.cpp compares with the vendor's headers;
// a definition that differs does not compile. Functions that only torch_npu uses are declared below, by inspection of
// its wheel.
#pragma once

#include "backends/ascend/acl_abi.h"
#include "backends/ascend/sim/runtime/sim.h"

#define CONCORD_SIM_ACL(name) CONCORD_SIM_EXPORT concord::ascend::abi::fn::name name

extern "C" {
CONCORD_SIM_ACL(aclInit);
CONCORD_SIM_ACL(aclFinalize);
CONCORD_SIM_ACL(aclGetRecentErrMsg);
CONCORD_SIM_ACL(aclrtGetSocName);
CONCORD_SIM_ACL(aclrtGetVersion);
CONCORD_SIM_ACL(aclsysGetCANNVersion);
CONCORD_SIM_ACL(aclsysGetVersionStr);

CONCORD_SIM_ACL(aclrtSetDevice);
CONCORD_SIM_ACL(aclrtResetDevice);
CONCORD_SIM_ACL(aclrtGetDevice);
CONCORD_SIM_ACL(aclrtGetDeviceCount);
CONCORD_SIM_ACL(aclrtSynchronizeDevice);
CONCORD_SIM_ACL(aclrtSynchronizeDeviceWithTimeout);
CONCORD_SIM_ACL(aclrtCreateContext);
CONCORD_SIM_ACL(aclrtDestroyContext);
CONCORD_SIM_ACL(aclrtSetCurrentContext);
CONCORD_SIM_ACL(aclrtGetCurrentContext);
CONCORD_SIM_ACL(aclrtGetDeviceInfo);
CONCORD_SIM_ACL(aclrtDeviceCanAccessPeer);
CONCORD_SIM_ACL(aclrtDeviceEnablePeerAccess);
CONCORD_SIM_ACL(aclrtDeviceDisablePeerAccess);
CONCORD_SIM_ACL(aclrtSetOpWaitTimeout);
CONCORD_SIM_ACL(aclrtSetOpExecuteTimeOut);
CONCORD_SIM_ACL(aclrtDeviceTaskAbort);

CONCORD_SIM_ACL(aclrtMalloc);
CONCORD_SIM_ACL(aclrtFree);
CONCORD_SIM_ACL(aclrtMallocHost);
CONCORD_SIM_ACL(aclrtFreeHost);
CONCORD_SIM_ACL(aclrtMemcpy);
CONCORD_SIM_ACL(aclrtMemcpyAsync);
CONCORD_SIM_ACL(aclrtMemset);
CONCORD_SIM_ACL(aclrtMemsetAsync);
CONCORD_SIM_ACL(aclrtGetMemInfo);
CONCORD_SIM_ACL(aclrtPointerGetAttributes);
CONCORD_SIM_ACL(aclrtIpcMemGetExportKey);
CONCORD_SIM_ACL(aclrtIpcMemClose);
CONCORD_SIM_ACL(aclrtIpcMemImportByKey);
CONCORD_SIM_ACL(aclrtIpcMemSetImportPid);

CONCORD_SIM_ACL(aclrtCreateStream);
CONCORD_SIM_ACL(aclrtCreateStreamWithConfig);
CONCORD_SIM_ACL(aclrtDestroyStream);
CONCORD_SIM_ACL(aclrtDestroyStreamForce);
CONCORD_SIM_ACL(aclrtSynchronizeStream);
CONCORD_SIM_ACL(aclrtSynchronizeStreamWithTimeout);
CONCORD_SIM_ACL(aclrtStreamQuery);
CONCORD_SIM_ACL(aclrtStreamAbort);
CONCORD_SIM_ACL(aclrtStreamWaitEvent);
CONCORD_SIM_ACL(aclrtStreamWaitEventWithTimeout);
CONCORD_SIM_ACL(aclrtStreamGetId);
CONCORD_SIM_ACL(aclrtSetStreamFailureMode);
CONCORD_SIM_ACL(aclrtDeviceGetStreamPriorityRange);
CONCORD_SIM_ACL(aclrtLaunchHostFunc);
CONCORD_SIM_ACL(aclrtSubscribeReport);
CONCORD_SIM_ACL(aclrtUnSubscribeReport);
CONCORD_SIM_ACL(aclrtLaunchCallback);
CONCORD_SIM_ACL(aclrtProcessReport);

CONCORD_SIM_ACL(aclrtCreateEvent);
CONCORD_SIM_ACL(aclrtCreateEventWithFlag);
CONCORD_SIM_ACL(aclrtCreateEventExWithFlag);
CONCORD_SIM_ACL(aclrtDestroyEvent);
CONCORD_SIM_ACL(aclrtRecordEvent);
CONCORD_SIM_ACL(aclrtResetEvent);
CONCORD_SIM_ACL(aclrtQueryEventStatus);
CONCORD_SIM_ACL(aclrtQueryEventWaitStatus);
CONCORD_SIM_ACL(aclrtSynchronizeEvent);
CONCORD_SIM_ACL(aclrtSynchronizeEventWithTimeout);
CONCORD_SIM_ACL(aclrtEventElapsedTime);

CONCORD_SIM_ACL(aclmdlRICaptureBegin);
CONCORD_SIM_ACL(aclmdlRICaptureGetInfo);
CONCORD_SIM_ACL(aclmdlRICaptureEnd);
CONCORD_SIM_ACL(aclmdlRIExecuteAsync);
CONCORD_SIM_ACL(aclmdlRIDestroy);
}

namespace concord::ascend::sim {

using aclrtDrvMemHandle = void*;

struct aclrtPhysicalMemProp {
  uint32_t handleType;
  uint32_t allocationType;
  uint32_t memAttr;
  abi::aclrtMemLocation location;
  uint64_t reserve;
};

struct aclrtUuid {
  char bytes[16];
};

struct aclrtMemUsageInfo {
  char name[32];
  uint64_t curMemSize;
  uint64_t memPeakSize;
  size_t reserved[8];
};

}  // namespace concord::ascend::sim

extern "C" {
CONCORD_SIM_EXPORT int32_t aclFinalizeReference(uint64_t* left);
CONCORD_SIM_EXPORT int32_t aclrtResetDeviceForce(int32_t device);
CONCORD_SIM_EXPORT int32_t aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active);
CONCORD_SIM_EXPORT int32_t aclrtDeviceGetBareTgid(int32_t* pid);
CONCORD_SIM_EXPORT int32_t aclrtDeviceGetUuid(int32_t device, concord::ascend::sim::aclrtUuid* uuid);
CONCORD_SIM_EXPORT int32_t aclGetDeviceCapability(uint32_t device, int32_t info, int64_t* value);
CONCORD_SIM_EXPORT int32_t aclrtGetLastError(int32_t level);
CONCORD_SIM_EXPORT int32_t aclrtPeekAtLastError(int32_t level);
CONCORD_SIM_EXPORT int32_t aclrtSetDeviceSatMode(int32_t mode);
CONCORD_SIM_EXPORT int32_t aclrtGetDeviceSatMode(int32_t* mode);
CONCORD_SIM_EXPORT int32_t aclrtSetSysParamOpt(int32_t option, int64_t value);
CONCORD_SIM_EXPORT int32_t aclrtGetSysParamOpt(int32_t option, int64_t* value);
CONCORD_SIM_EXPORT int32_t aclrtCtxSetSysParamOpt(int32_t option, int64_t value);
CONCORD_SIM_EXPORT int32_t aclrtCtxGetSysParamOpt(int32_t option, int64_t* value);
CONCORD_SIM_EXPORT int32_t aclrtSetOpExecuteTimeOutV2(uint64_t microseconds, uint64_t* actual);

CONCORD_SIM_EXPORT int32_t aclrtSetStreamAttribute(void* stream, int32_t attribute, const void* value);
CONCORD_SIM_EXPORT int32_t aclmdlRIGetId(void* model, uint32_t* id);
CONCORD_SIM_EXPORT int32_t aclmdlRICaptureThreadExchangeMode(concord::ascend::abi::aclmdlRICaptureMode* mode);

CONCORD_SIM_EXPORT int32_t aclrtMallocAlign32(void** address, size_t bytes, uint32_t policy);
CONCORD_SIM_EXPORT int32_t aclrtHostRegister(void* address, uint64_t bytes, uint32_t type, void** device_address);
CONCORD_SIM_EXPORT int32_t aclrtHostRegisterV2(void* address, uint64_t bytes, uint32_t flag);
CONCORD_SIM_EXPORT int32_t aclrtHostUnregister(void* address);
CONCORD_SIM_EXPORT int32_t aclrtReserveMemAddress(void** address, size_t bytes, size_t alignment, void* expected,
                                                  uint64_t flags);
CONCORD_SIM_EXPORT int32_t aclrtReleaseMemAddress(void* address);
CONCORD_SIM_EXPORT int32_t aclrtMallocPhysical(void** handle, size_t bytes,
                                               const concord::ascend::sim::aclrtPhysicalMemProp* properties,
                                               uint64_t flags);
CONCORD_SIM_EXPORT int32_t aclrtFreePhysical(void* handle);
CONCORD_SIM_EXPORT int32_t aclrtMapMem(void* address, size_t bytes, size_t offset, void* handle, uint64_t flags);
CONCORD_SIM_EXPORT int32_t aclrtUnmapMem(void* address);
CONCORD_SIM_EXPORT int32_t aclrtMemExportToShareableHandle(void* handle, uint32_t type, uint64_t flags,
                                                           uint64_t* shared);
CONCORD_SIM_EXPORT int32_t aclrtMemImportFromShareableHandle(uint64_t shared, int32_t device, void** handle);
CONCORD_SIM_EXPORT int32_t aclrtMemSetPidToShareableHandle(uint64_t shared, int32_t* pids, size_t count);
}
