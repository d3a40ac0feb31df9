// Compiles only if acl_abi.h and hccl_abi.h agree with the vendor's own headers: every function's type, every
// struct's size and offsets, every number. Built wherever those headers are found (toolchains/ascend.cmake); it has no
// code.
//
// Older releases lack some names. vendor_has.h, which CMake writes, has HAS_<name> as 1 or 0 for each; what is 0 is
// left out, except for the functions that symbols.inc calls required.
//
// Types are the same for the ABI if they are passed in the same way: enums of one size, structs of one size and
// alignment that are compared field by field below, pointers to such.
#include <acl/acl.h>
#include <hccl/hccl.h>

#include <type_traits>

#include "backends/ascend/acl_abi.h"
#include "backends/ascend/hccl_abi.h"
#include "vendor_has.h"

namespace concord::ascend {
namespace {

template <class Ours, class Theirs>
constexpr bool same_abi();

template <class Ours, class Theirs>
struct SameFunction : std::false_type {};
template <class Ours, class... OurArguments, class Theirs, class... TheirArguments>
  requires(sizeof...(OurArguments) == sizeof...(TheirArguments))
struct SameFunction<Ours(OurArguments...), Theirs(TheirArguments...)>
    : std::bool_constant<same_abi<Ours, Theirs>() && (same_abi<OurArguments, TheirArguments>() && ...)> {};

template <class Ours, class Theirs>
constexpr bool same_abi() {
  if constexpr (std::is_same_v<Ours, Theirs>) {
    return true;
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using To = std::remove_pointer_t<Ours>;
    using ToTheirs = std::remove_pointer_t<Theirs>;
    return std::is_const_v<To> == std::is_const_v<ToTheirs> &&
           same_abi<std::remove_const_t<To>, std::remove_const_t<ToTheirs>>();
  } else if constexpr (std::is_function_v<Ours> && std::is_function_v<Theirs>) {
    return SameFunction<Ours, Theirs>::value;
  } else if constexpr (std::is_enum_v<Ours> && std::is_enum_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs);
  } else if constexpr (std::is_same_v<Ours, abi::HcclCommConfig>) {
    return std::is_same_v<Theirs, ::HcclCommConfig>;  // a prefix of theirs, which the library takes as one
  } else if constexpr (std::is_class_v<Ours> && std::is_class_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs);
  } else {
    return false;
  }
}

// ----------------------------------------------------------------------------------------------------------- functions

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // aclsysGetCANNVersion, which older releases have alone
#define JOIN_NOW(a, b) a##b
#define JOIN(a, b) JOIN_NOW(a, b)
#define NOTHING_0(...)  // IF_THERE(name, check): the check, where the headers have the name
#define NOTHING_1(...) __VA_ARGS__
#define IF_THERE(name, ...) JOIN(NOTHING_, HAS_##name)(__VA_ARGS__)

#define REQUIRED_FUNCTION(name) static_assert(same_abi<abi::fn::name, decltype(::name)>(), #name);
#define SAME_FUNCTION(name) IF_THERE(name, REQUIRED_FUNCTION(name))
#define CONCORD_ACL(name) REQUIRED_FUNCTION(name)
#define CONCORD_ACL_OPTIONAL(name) SAME_FUNCTION(name)
#define CONCORD_HCCL(name) REQUIRED_FUNCTION(name)
#define CONCORD_HCCL_OPTIONAL(name) SAME_FUNCTION(name)
#include "backends/ascend/symbols.inc"
// Those that the simulator has besides.
SAME_FUNCTION(HcclBarrier)
SAME_FUNCTION(HcclCommInitRootInfoConfig)
SAME_FUNCTION(HcclCommResume)
SAME_FUNCTION(HcclCommSuspend)
SAME_FUNCTION(HcclGetCommConfigCapability)
SAME_FUNCTION(HcclGetCommName)
SAME_FUNCTION(HcclGetRankId)
SAME_FUNCTION(HcclGetRankSize)
SAME_FUNCTION(HcclRecv)
SAME_FUNCTION(HcclScatter)
SAME_FUNCTION(HcclSend)
SAME_FUNCTION(aclFinalize)
SAME_FUNCTION(aclrtCreateContext)
SAME_FUNCTION(aclrtCreateEvent)
SAME_FUNCTION(aclrtCreateEventWithFlag)
SAME_FUNCTION(aclrtCreateStream)
SAME_FUNCTION(aclrtDestroyContext)
SAME_FUNCTION(aclrtDestroyStreamForce)
SAME_FUNCTION(aclrtDeviceDisablePeerAccess)
SAME_FUNCTION(aclrtDeviceTaskAbort)
SAME_FUNCTION(aclrtGetCurrentContext)
SAME_FUNCTION(aclrtGetVersion)
SAME_FUNCTION(aclrtIpcMemClose)
SAME_FUNCTION(aclrtIpcMemGetExportKey)
SAME_FUNCTION(aclrtIpcMemImportByKey)
SAME_FUNCTION(aclrtIpcMemSetImportPid)
SAME_FUNCTION(aclrtLaunchCallback)
SAME_FUNCTION(aclrtMemset)
SAME_FUNCTION(aclrtProcessReport)
SAME_FUNCTION(aclrtQueryEventWaitStatus)
SAME_FUNCTION(aclrtResetDevice)
SAME_FUNCTION(aclrtResetEvent)
SAME_FUNCTION(aclrtSetCurrentContext)
SAME_FUNCTION(aclrtSetOpExecuteTimeOut)
SAME_FUNCTION(aclrtSetOpWaitTimeout)
SAME_FUNCTION(aclrtSetStreamFailureMode)
SAME_FUNCTION(aclrtStreamAbort)
SAME_FUNCTION(aclrtStreamGetId)
SAME_FUNCTION(aclrtStreamWaitEventWithTimeout)
SAME_FUNCTION(aclrtSubscribeReport)
SAME_FUNCTION(aclrtSynchronizeDeviceWithTimeout)
SAME_FUNCTION(aclrtSynchronizeEventWithTimeout)
SAME_FUNCTION(aclrtSynchronizeStreamWithTimeout)
SAME_FUNCTION(aclrtUnSubscribeReport)
SAME_FUNCTION(aclsysGetVersionStr)

// ------------------------------------------------------------------------------------------------------------- numbers

#define EQUAL(ours, theirs, name) \
  static_assert(static_cast<long long>(abi::ours) == static_cast<long long>(theirs), name);
#define SAME(ours, theirs) JOIN(NOTHING_, HAS_##theirs)(EQUAL(ours, theirs, #theirs))
SAME(kAclDtUndefined, ACL_DT_UNDEFINED)
SAME(kAclFloat, ACL_FLOAT)
SAME(kAclFloat16, ACL_FLOAT16)
SAME(kAclInt8, ACL_INT8)
SAME(kAclInt32, ACL_INT32)
SAME(kAclUint8, ACL_UINT8)
SAME(kAclInt16, ACL_INT16)
SAME(kAclUint16, ACL_UINT16)
SAME(kAclUint32, ACL_UINT32)
SAME(kAclInt64, ACL_INT64)
SAME(kAclUint64, ACL_UINT64)
SAME(kAclDouble, ACL_DOUBLE)
SAME(kAclBool, ACL_BOOL)
SAME(kAclComplex64, ACL_COMPLEX64)
SAME(kAclComplex128, ACL_COMPLEX128)
SAME(kAclBf16, ACL_BF16)
SAME(kAclFormatUndefined, ACL_FORMAT_UNDEFINED)
SAME(kAclFormatNd, ACL_FORMAT_ND)
SAME(kMemcpyHostToHost, ACL_MEMCPY_HOST_TO_HOST)
SAME(kMemcpyHostToDevice, ACL_MEMCPY_HOST_TO_DEVICE)
SAME(kMemcpyDeviceToHost, ACL_MEMCPY_DEVICE_TO_HOST)
SAME(kMemcpyDeviceToDevice, ACL_MEMCPY_DEVICE_TO_DEVICE)
SAME(kMemcpyDefault, ACL_MEMCPY_DEFAULT)
SAME(kMallocHugeFirst, ACL_MEM_MALLOC_HUGE_FIRST)
SAME(kMallocHugeOnly, ACL_MEM_MALLOC_HUGE_ONLY)
SAME(kMallocNormalOnly, ACL_MEM_MALLOC_NORMAL_ONLY)
SAME(kDdrMem, ACL_DDR_MEM)
SAME(kHbmMem, ACL_HBM_MEM)
SAME(kEventRecordedNotReady, ACL_EVENT_RECORDED_STATUS_NOT_READY)
SAME(kEventRecordedComplete, ACL_EVENT_RECORDED_STATUS_COMPLETE)
SAME(kEventWaitComplete, ACL_EVENT_WAIT_STATUS_COMPLETE)
SAME(kEventWaitNotReady, ACL_EVENT_WAIT_STATUS_NOT_READY)
SAME(kStreamComplete, ACL_STREAM_STATUS_COMPLETE)
SAME(kStreamNotReady, ACL_STREAM_STATUS_NOT_READY)
SAME(kCallbackNoBlock, ACL_CALLBACK_NO_BLOCK)
SAME(kCallbackBlock, ACL_CALLBACK_BLOCK)
SAME(kCaptureGlobal, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL)
SAME(kCaptureThreadLocal, ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL)
SAME(kCaptureRelaxed, ACL_MODEL_RI_CAPTURE_MODE_RELAXED)
SAME(kCaptureNone, ACL_MODEL_RI_CAPTURE_STATUS_NONE)
SAME(kCaptureActive, ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE)
SAME(kCaptureInvalidated, ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED)
SAME(kLocationHost, ACL_MEM_LOCATION_TYPE_HOST)
SAME(kLocationDevice, ACL_MEM_LOCATION_TYPE_DEVICE)
SAME(kLocationUnregistered, ACL_MEM_LOCATION_TYPE_UNREGISTERED)
SAME(kDevAttrAicoreNum, ACL_DEV_ATTR_AICORE_CORE_NUM)
SAME(kDevAttrVectorCoreNum, ACL_DEV_ATTR_VECTOR_CORE_NUM)
SAME(kDevAttrTotalMemory, ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE)
SAME(kPackageCann, ACL_PKG_NAME_CANN)
SAME(kPackageRuntime, ACL_PKG_NAME_RUNTIME)
SAME(kPackageHccl, ACL_PKG_NAME_HCCL)
SAME(kEventSync, ACL_EVENT_SYNC)
SAME(kEventStreamProgress, ACL_EVENT_CAPTURE_STREAM_PROGRESS)
SAME(kEventTimeLine, ACL_EVENT_TIME_LINE)
SAME(kEventExternal, ACL_EVENT_EXTERNAL)
SAME(kEventIpc, ACL_EVENT_IPC)
SAME(kStreamFastLaunch, ACL_STREAM_FAST_LAUNCH)
SAME(kStreamFastSync, ACL_STREAM_FAST_SYNC)
SAME(kFailureContinue, ACL_CONTINUE_ON_FAILURE)
SAME(kFailureStop, ACL_STOP_ON_FAILURE)

SAME(kAclSuccess, ACL_SUCCESS)
SAME(kAclInvalidParam, ACL_ERROR_INVALID_PARAM)
SAME(kAclUninitialize, ACL_ERROR_UNINITIALIZE)
SAME(kAclRepeatInitialize, ACL_ERROR_REPEAT_INITIALIZE)
SAME(kAclInvalidFile, ACL_ERROR_INVALID_FILE)
SAME(kAclRepeatFinalize, ACL_ERROR_REPEAT_FINALIZE)
SAME(kAclBadAlloc, ACL_ERROR_BAD_ALLOC)
SAME(kAclApiNotSupport, ACL_ERROR_API_NOT_SUPPORT)
SAME(kAclFeatureUnsupported, ACL_ERROR_FEATURE_UNSUPPORTED)
SAME(kAclStorageOverLimit, ACL_ERROR_STORAGE_OVER_LIMIT)
SAME(kAclInternalError, ACL_ERROR_INTERNAL_ERROR)
SAME(kAclFailure, ACL_ERROR_FAILURE)
SAME(kRtParamInvalid, ACL_ERROR_RT_PARAM_INVALID)
SAME(kRtInvalidDeviceId, ACL_ERROR_RT_INVALID_DEVICEID)
SAME(kRtContextNull, ACL_ERROR_RT_CONTEXT_NULL)
SAME(kRtStreamContext, ACL_ERROR_RT_STREAM_CONTEXT)
SAME(kRtModelContext, ACL_ERROR_RT_MODEL_CONTEXT)
SAME(kRtStreamModel, ACL_ERROR_RT_STREAM_MODEL)
SAME(kRtEventTimestampInvalid, ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID)
SAME(kRtEventTimestampReversal, ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL)
SAME(kRtInvalidHandle, ACL_ERROR_RT_INVALID_HANDLE)
SAME(kRtInvalidMallocType, ACL_ERROR_RT_INVALID_MALLOC_TYPE)
SAME(kRtWaitTimeout, ACL_ERROR_RT_WAIT_TIMEOUT)
SAME(kRtTaskTimeout, ACL_ERROR_RT_TASK_TIMEOUT)
SAME(kRtDeviceTaskAbort, ACL_ERROR_RT_DEVICE_TASK_ABORT)
SAME(kRtStreamAbort, ACL_ERROR_RT_STREAM_ABORT)
SAME(kRtFeatureNotSupport, ACL_ERROR_RT_FEATURE_NOT_SUPPORT)
SAME(kRtMemoryAllocation, ACL_ERROR_RT_MEMORY_ALLOCATION)
SAME(kRtMemoryFree, ACL_ERROR_RT_MEMORY_FREE)
SAME(kRtNoDevice, ACL_ERROR_RT_NO_DEVICE)
SAME(kRtNoEventResource, ACL_ERROR_RT_NO_EVENT_RESOURCE)
SAME(kRtNoStreamResource, ACL_ERROR_RT_NO_STREAM_RESOURCE)
SAME(kRtDeviceOom, ACL_ERROR_RT_DEVICE_OOM)
SAME(kRtInternalError, ACL_ERROR_RT_INTERNAL_ERROR)
SAME(kRtEventNotComplete, ACL_ERROR_RT_EVENT_NOT_COMPLETE)
SAME(kRtAicoreTimeout, ACL_ERROR_RT_AICORE_TIMEOUT)
SAME(kRtAicoreException, ACL_ERROR_RT_AICORE_EXCEPTION)
SAME(kRtAicpuException, ACL_ERROR_RT_AICPU_EXCEPTION)
SAME(kRtStreamSyncTimeout, ACL_ERROR_RT_STREAM_SYNC_TIMEOUT)
SAME(kRtEventSyncTimeout, ACL_ERROR_RT_EVENT_SYNC_TIMEOUT)
SAME(kRtDeviceMemError, ACL_ERROR_RT_DEVICE_MEM_ERROR)
SAME(kRtHbmEcc, ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR)

SAME(kHcclSuccess, HCCL_SUCCESS)
SAME(kHcclPara, HCCL_E_PARA)
SAME(kHcclPtr, HCCL_E_PTR)
SAME(kHcclMemory, HCCL_E_MEMORY)
SAME(kHcclInternal, HCCL_E_INTERNAL)
SAME(kHcclNotSupport, HCCL_E_NOT_SUPPORT)
SAME(kHcclNotFound, HCCL_E_NOT_FOUND)
SAME(kHcclUnavail, HCCL_E_UNAVAIL)
SAME(kHcclSyscall, HCCL_E_SYSCALL)
SAME(kHcclTimeout, HCCL_E_TIMEOUT)
SAME(kHcclOpenFile, HCCL_E_OPEN_FILE_FAILURE)
SAME(kHcclTcpConnect, HCCL_E_TCP_CONNECT)
SAME(kHcclRoceConnect, HCCL_E_ROCE_CONNECT)
SAME(kHcclTcpTransfer, HCCL_E_TCP_TRANSFER)
SAME(kHcclRoceTransfer, HCCL_E_ROCE_TRANSFER)
SAME(kHcclRuntime, HCCL_E_RUNTIME)
SAME(kHcclDrv, HCCL_E_DRV)
SAME(kHcclProfiling, HCCL_E_PROFILING)
SAME(kHcclCce, HCCL_E_CCE)
SAME(kHcclNetwork, HCCL_E_NETWORK)
SAME(kHcclAgain, HCCL_E_AGAIN)
SAME(kHcclRemote, HCCL_E_REMOTE)
SAME(kHcclSuspending, HCCL_E_SUSPENDING)
SAME(kHcclOpRetryFail, HCCL_E_OPRETRY_FAIL)
SAME(kHcclOom, HCCL_E_OOM)
SAME(kHcclSum, HCCL_REDUCE_SUM)
SAME(kHcclProd, HCCL_REDUCE_PROD)
SAME(kHcclMax, HCCL_REDUCE_MAX)
SAME(kHcclMin, HCCL_REDUCE_MIN)
SAME(kHcclInt8, HCCL_DATA_TYPE_INT8)
SAME(kHcclInt16, HCCL_DATA_TYPE_INT16)
SAME(kHcclInt32, HCCL_DATA_TYPE_INT32)
SAME(kHcclFp16, HCCL_DATA_TYPE_FP16)
SAME(kHcclFp32, HCCL_DATA_TYPE_FP32)
SAME(kHcclInt64, HCCL_DATA_TYPE_INT64)
SAME(kHcclUint64, HCCL_DATA_TYPE_UINT64)
SAME(kHcclUint8, HCCL_DATA_TYPE_UINT8)
SAME(kHcclUint16, HCCL_DATA_TYPE_UINT16)
SAME(kHcclUint32, HCCL_DATA_TYPE_UINT32)
SAME(kHcclFp64, HCCL_DATA_TYPE_FP64)
SAME(kHcclBfp16, HCCL_DATA_TYPE_BFP16)
SAME(kHcclInt128, HCCL_DATA_TYPE_INT128)
SAME(kHcclRootInfoBytes, HCCL_ROOT_INFO_BYTES)
SAME(kHcclSend, HCCL_SEND)
SAME(kHcclRecv, HCCL_RECV)
SAME(kHcclConfigMagic, HCCL_COMM_CONFIG_MAGIC_WORD)
SAME(kHcclConfigNotSet, HCCL_COMM_BUFFSIZE_CONFIG_NOT_SET)
SAME(kHcclConfigNotSet, HCCL_COMM_DETERMINISTIC_CONFIG_NOT_SET)
SAME(kHcclConfigNotSet, HCCL_COMM_TRAFFIC_CLASS_CONFIG_NOT_SET)
SAME(kHcclConfigNotSet, HCCL_COMM_SERVICE_LEVEL_CONFIG_NOT_SET)
static_assert(HCCL_COMM_CONFIG_VERSION >= abi::kHcclConfigVersion);

// ------------------------------------------------------------------------------------------------------------- structs

#define EQUAL_FIELD(type, field)                                                          \
  static_assert(offsetof(abi::type, field) == offsetof(::type, field), #type "." #field); \
  static_assert(sizeof(abi::type::field) == sizeof(::type::field), #type "." #field);
#define SAME_FIELD(type, field) IF_THERE(type, EQUAL_FIELD(type, field))
SAME_FIELD(aclrtMemLocation, id)
SAME_FIELD(aclrtMemLocation, type)
SAME_FIELD(aclrtPtrAttributes, location)
SAME_FIELD(aclrtPtrAttributes, pageSize)
SAME_FIELD(aclrtPtrAttributes, rsv)
SAME_FIELD(aclCANNPackageVersion, version)
SAME_FIELD(aclCANNPackageVersion, majorVersion)
SAME_FIELD(aclCANNPackageVersion, minorVersion)
SAME_FIELD(aclCANNPackageVersion, releaseVersion)
SAME_FIELD(aclCANNPackageVersion, patchVersion)
SAME_FIELD(HcclRootInfo, internal)
SAME_FIELD(HcclSendRecvItem, sendRecvType)
SAME_FIELD(HcclSendRecvItem, buf)
SAME_FIELD(HcclSendRecvItem, count)
SAME_FIELD(HcclSendRecvItem, dataType)
SAME_FIELD(HcclSendRecvItem, remoteRank)
SAME_FIELD(HcclCommConfig, hcclBufferSize)
SAME_FIELD(HcclCommConfig, hcclDeterministic)
SAME_FIELD(HcclCommConfig, hcclCommName)
SAME_FIELD(HcclCommConfig, hcclUdi)
SAME_FIELD(HcclCommConfig, hcclOpExpansionMode)
SAME_FIELD(HcclCommConfig, hcclRdmaTrafficClass)
SAME_FIELD(HcclCommConfig, hcclRdmaServiceLevel)
static_assert(offsetof(abi::HcclCommConfig, hcclBufferSize) == HCCL_COMM_CONFIG_INFO_BYTES);
static_assert(sizeof(::HcclCommConfig) >= abi::kHcclConfigBytes);

}  // namespace
}  // namespace concord::ascend
