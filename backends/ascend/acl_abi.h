// Own declarations of the part of the ACL runtime (CANN 8.1 to 9.x) that this backend uses: the vendor's headers may
// not be redistributed and are not needed to build. Types and functions have the vendor's names, in namespace abi;
// constants have names of this project. fn::aclrtMalloc is the *type* of that function: no symbol is declared, so none
// can be linked by accident. The backend looks the functions up by dlsym (symbols.inc); the simulator in sim/ defines
// them.
//
// vendor_check.cpp compares every declaration with the vendor's headers if they are installed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/ascend/acl_codes.h"

namespace concord::ascend::abi {

// --------------------------------------------------------------------------------------------------------------- types

using aclrtStream = void*;
using aclrtEvent = void*;
using aclrtContext = void*;
using aclmdlRI = void*;  // handle of captured work
using aclrtHostFunc = void (*)(void* args);
using aclrtCallback = void (*)(void* args);

enum aclDataType : int32_t {
  kAclDtUndefined = -1,
  kAclFloat = 0,
  kAclFloat16 = 1,
  kAclInt8 = 2,
  kAclInt32 = 3,
  kAclUint8 = 4,
  kAclInt16 = 6,
  kAclUint16 = 7,
  kAclUint32 = 8,
  kAclInt64 = 9,
  kAclUint64 = 10,
  kAclDouble = 11,
  kAclBool = 12,
  kAclComplex64 = 16,
  kAclComplex128 = 17,
  kAclBf16 = 27,
};

enum aclFormat : int32_t { kAclFormatUndefined = -1, kAclFormatNd = 2 };

enum aclrtMemcpyKind : uint32_t {
  kMemcpyHostToHost = 0,
  kMemcpyHostToDevice = 1,
  kMemcpyDeviceToHost = 2,
  kMemcpyDeviceToDevice = 3,
  kMemcpyDefault = 4,
};

enum aclrtMemMallocPolicy : uint32_t { kMallocHugeFirst = 0, kMallocHugeOnly = 1, kMallocNormalOnly = 2 };

enum aclrtMemAttr : uint32_t { kDdrMem = 0, kHbmMem = 1 };

// Note that "complete" is the larger value of the recorded status, and the smaller value of the two others.
enum aclrtEventRecordedStatus : uint32_t { kEventRecordedNotReady = 0, kEventRecordedComplete = 1 };
enum aclrtEventWaitStatus : uint32_t { kEventWaitComplete = 0, kEventWaitNotReady = 1 };
enum aclrtStreamStatus : uint32_t { kStreamComplete = 0, kStreamNotReady = 1 };

enum aclrtCallbackBlockType : uint32_t { kCallbackNoBlock = 0, kCallbackBlock = 1 };

enum aclmdlRICaptureMode : uint32_t { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
enum aclmdlRICaptureStatus : uint32_t { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };

enum aclrtMemLocationType : uint32_t { kLocationHost = 0, kLocationDevice = 1, kLocationUnregistered = 2 };

struct aclrtMemLocation {
  uint32_t id;
  aclrtMemLocationType type;
};

struct aclrtPtrAttributes {
  aclrtMemLocation location;
  uint32_t pageSize;
  uint32_t rsv[4];
};

enum aclrtDevAttr : uint32_t { kDevAttrAicoreNum = 101, kDevAttrVectorCoreNum = 201, kDevAttrTotalMemory = 301 };

enum aclCANNPackageName : uint32_t { kPackageCann = 0, kPackageRuntime = 1, kPackageHccl = 3 };

struct aclCANNPackageVersion {
  char version[128];
  char majorVersion[64];
  char minorVersion[64];
  char releaseVersion[64];
  char patchVersion[64];
  char reserved[128];
};

// --------------------------------------------------------------------------------------------------------------- flags

inline constexpr uint32_t kEventSync = 0x1;            // streams can wait for the event
inline constexpr uint32_t kEventStreamProgress = 0x2;  // the host can query the event
inline constexpr uint32_t kEventTimeLine = 0x8;        // the event has a time
inline constexpr uint32_t kEventExternal = 0x20;
inline constexpr uint32_t kEventIpc = 0x40;
inline constexpr uint32_t kStreamFastLaunch = 0x1;
inline constexpr uint32_t kStreamFastSync = 0x2;
inline constexpr uint64_t kFailureContinue = 0;
inline constexpr uint64_t kFailureStop = 1;

// ----------------------------------------------------------------------------------------------------------- functions

namespace fn {
// clang-format off
// The process, versions, messages
using aclInit = aclError(const char* config_path);
using aclFinalize = aclError();
using aclGetRecentErrMsg = const char*();
using aclrtGetSocName = const char*();
using aclrtGetVersion = aclError(int32_t* major, int32_t* minor, int32_t* patch);  // version of the runtime's interface, not of CANN
using aclsysGetCANNVersion = aclError(aclCANNPackageName, aclCANNPackageVersion*);
using aclsysGetVersionStr = aclError(char* package, char* version);  // 8.5+

// Devices and contexts
using aclrtSetDevice = aclError(int32_t);
using aclrtResetDevice = aclError(int32_t);
using aclrtGetDevice = aclError(int32_t*);
using aclrtGetDeviceCount = aclError(uint32_t*);
using aclrtSynchronizeDevice = aclError();
using aclrtSynchronizeDeviceWithTimeout = aclError(int32_t milliseconds);
using aclrtCreateContext = aclError(aclrtContext*, int32_t device);
using aclrtDestroyContext = aclError(aclrtContext);
using aclrtSetCurrentContext = aclError(aclrtContext);
using aclrtGetCurrentContext = aclError(aclrtContext*);
using aclrtGetDeviceInfo = aclError(uint32_t device, aclrtDevAttr, int64_t* value);
using aclrtDeviceCanAccessPeer = aclError(int32_t* can, int32_t device, int32_t peer);
using aclrtDeviceEnablePeerAccess = aclError(int32_t peer, uint32_t flags);  // flags: 0
using aclrtDeviceDisablePeerAccess = aclError(int32_t peer);
using aclrtSetOpWaitTimeout = aclError(uint32_t seconds);
using aclrtSetOpExecuteTimeOut = aclError(uint32_t seconds);
using aclrtDeviceTaskAbort = aclError(int32_t device, uint32_t milliseconds);

// Memory
using aclrtMalloc = aclError(void**, size_t, aclrtMemMallocPolicy);
using aclrtFree = aclError(void*);
using aclrtMallocHost = aclError(void**, size_t);
using aclrtFreeHost = aclError(void*);
using aclrtMemcpy = aclError(void* destination, size_t destination_size, const void* source, size_t, aclrtMemcpyKind);
using aclrtMemcpyAsync = aclError(void* destination, size_t destination_size, const void* source, size_t, aclrtMemcpyKind, aclrtStream);
using aclrtMemset = aclError(void*, size_t destination_size, int32_t value, size_t);
using aclrtMemsetAsync = aclError(void*, size_t destination_size, int32_t value, size_t, aclrtStream);
using aclrtGetMemInfo = aclError(aclrtMemAttr, size_t* free, size_t* total);
using aclrtPointerGetAttributes = aclError(const void*, aclrtPtrAttributes*);
using aclrtIpcMemGetExportKey = aclError(void*, size_t, char* key, size_t key_size, uint64_t flags);
using aclrtIpcMemClose = aclError(const char* key);
using aclrtIpcMemImportByKey = aclError(void**, const char* key, uint64_t flags);
using aclrtIpcMemSetImportPid = aclError(const char* key, int32_t* pids, size_t);

// Streams
using aclrtCreateStream = aclError(aclrtStream*);
using aclrtCreateStreamWithConfig = aclError(aclrtStream*, uint32_t priority, uint32_t flags);
using aclrtDestroyStream = aclError(aclrtStream);
using aclrtDestroyStreamForce = aclError(aclrtStream);
using aclrtSynchronizeStream = aclError(aclrtStream);
using aclrtSynchronizeStreamWithTimeout = aclError(aclrtStream, int32_t milliseconds);
using aclrtStreamQuery = aclError(aclrtStream, aclrtStreamStatus*);
using aclrtStreamAbort = aclError(aclrtStream);
using aclrtStreamWaitEvent = aclError(aclrtStream, aclrtEvent);
using aclrtStreamWaitEventWithTimeout = aclError(aclrtStream, aclrtEvent, int32_t milliseconds);  // 8.5+
using aclrtStreamGetId = aclError(aclrtStream, int32_t*);
using aclrtSetStreamFailureMode = aclError(aclrtStream, uint64_t mode);
using aclrtDeviceGetStreamPriorityRange = aclError(int32_t* least, int32_t* greatest);
using aclrtLaunchHostFunc = aclError(aclrtStream, aclrtHostFunc, void* args);  // 8.5+
using aclrtSubscribeReport = aclError(uint64_t thread, aclrtStream);
using aclrtUnSubscribeReport = aclError(uint64_t thread, aclrtStream);
using aclrtLaunchCallback = aclError(aclrtCallback, void* args, aclrtCallbackBlockType, aclrtStream);
using aclrtProcessReport = aclError(int32_t milliseconds);

// Events
using aclrtCreateEvent = aclError(aclrtEvent*);
using aclrtCreateEventWithFlag = aclError(aclrtEvent*, uint32_t flags);
using aclrtCreateEventExWithFlag = aclError(aclrtEvent*, uint32_t flags);
using aclrtDestroyEvent = aclError(aclrtEvent);
using aclrtRecordEvent = aclError(aclrtEvent, aclrtStream);
using aclrtResetEvent = aclError(aclrtEvent, aclrtStream);
using aclrtQueryEventStatus = aclError(aclrtEvent, aclrtEventRecordedStatus*);
using aclrtQueryEventWaitStatus = aclError(aclrtEvent, aclrtEventWaitStatus*);
using aclrtSynchronizeEvent = aclError(aclrtEvent);
using aclrtSynchronizeEventWithTimeout = aclError(aclrtEvent, int32_t milliseconds);
using aclrtEventElapsedTime = aclError(float* milliseconds, aclrtEvent start, aclrtEvent end);

// Captured work
using aclmdlRICaptureBegin = aclError(aclrtStream, aclmdlRICaptureMode);
using aclmdlRICaptureGetInfo = aclError(aclrtStream, aclmdlRICaptureStatus*, aclmdlRI*);
using aclmdlRICaptureEnd = aclError(aclrtStream, aclmdlRI*);
using aclmdlRIExecuteAsync = aclError(aclmdlRI, aclrtStream);
using aclmdlRIDestroy = aclError(aclmdlRI);
// clang-format on
}  // namespace fn

}  // namespace concord::ascend::abi
