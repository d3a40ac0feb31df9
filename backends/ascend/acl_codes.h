// Error codes of the ACL runtime that this backend and the simulator name. See acl_abi.h.
#pragma once

namespace concord::ascend::abi {

using aclError = int;

inline constexpr aclError kAclSuccess = 0;
inline constexpr aclError kAclInvalidParam = 100000;
inline constexpr aclError kAclUninitialize = 100001;
inline constexpr aclError kAclRepeatInitialize = 100002;
inline constexpr aclError kAclInvalidFile = 100003;
inline constexpr aclError kAclRepeatFinalize = 100037;
inline constexpr aclError kAclBadAlloc = 200000;
inline constexpr aclError kAclApiNotSupport = 200001;
inline constexpr aclError kAclFeatureUnsupported = 200006;
inline constexpr aclError kAclStorageOverLimit = 300000;
inline constexpr aclError kAclInternalError = 500000;
inline constexpr aclError kAclFailure = 500001;

inline constexpr aclError kRtParamInvalid = 107000;
inline constexpr aclError kRtInvalidDeviceId = 107001;
inline constexpr aclError kRtContextNull = 107002;
inline constexpr aclError kRtStreamContext = 107003;
inline constexpr aclError kRtModelContext = 107004;
inline constexpr aclError kRtStreamModel = 107005;
inline constexpr aclError kRtEventTimestampInvalid = 107006;
inline constexpr aclError kRtEventTimestampReversal = 107007;
inline constexpr aclError kRtInvalidHandle = 107017;
inline constexpr aclError kRtInvalidMallocType = 107018;
inline constexpr aclError kRtWaitTimeout = 107019;
inline constexpr aclError kRtTaskTimeout = 107020;
inline constexpr aclError kRtDeviceTaskAbort = 107022;
inline constexpr aclError kRtStreamAbort = 107023;
inline constexpr aclError kRtFeatureNotSupport = 207000;
inline constexpr aclError kRtMemoryAllocation = 207001;  // out of memory
inline constexpr aclError kRtMemoryFree = 207002;
inline constexpr aclError kRtNoDevice = 207004;
inline constexpr aclError kRtNoEventResource = 207007;
inline constexpr aclError kRtNoStreamResource = 207008;
inline constexpr aclError kRtDeviceOom = 207018;
inline constexpr aclError kRtInternalError = 507000;
inline constexpr aclError kRtEventNotComplete = 507006;
inline constexpr aclError kRtAicoreTimeout = 507014;
inline constexpr aclError kRtAicoreException = 507015;
inline constexpr aclError kRtAicpuException = 507018;
inline constexpr aclError kRtStreamSyncTimeout = 507046;
inline constexpr aclError kRtEventSyncTimeout = 507047;
inline constexpr aclError kRtDeviceMemError = 507053;
inline constexpr aclError kRtHbmEcc = 507054;

}  // namespace concord::ascend::abi
