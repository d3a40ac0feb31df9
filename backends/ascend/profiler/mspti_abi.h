// The part of MSPTI that the backend uses (libmspti.so, CANN 8.1 and later): records of what devices did. Written from
// the vendor's documentation of MSPTI; no wheel of torch_npu contains its headers, so no build compares them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace concord::ascend::abi {

using msptiResult = int32_t;
inline constexpr msptiResult kMsptiSuccess = 0;
inline constexpr msptiResult kMsptiInvalidParameter = 1;
inline constexpr msptiResult kMsptiMaxLimitReached = 3;  // no further record in this buffer

using msptiActivityKind = int32_t;
inline constexpr msptiActivityKind kMsptiKernel = 2;
inline constexpr msptiActivityKind kMsptiHccl = 4;
inline constexpr msptiActivityKind kMsptiMemset = 6;
inline constexpr msptiActivityKind kMsptiMemcpy = 7;

inline constexpr int32_t kMsptiCopyHostToDevice = 2;
inline constexpr int32_t kMsptiCopyDeviceToHost = 3;
inline constexpr int32_t kMsptiCopyDeviceToDevice = 4;

inline constexpr uint32_t kMsptiNoStream = 0xffffffff;

// Records are packed, and begin at multiples of 8. Times are nanoseconds of the system's clock.
#define CONCORD_MSPTI_RECORD __attribute__((packed, aligned(8)))

struct CONCORD_MSPTI_RECORD msptiActivity {
  msptiActivityKind kind;
};

struct CONCORD_MSPTI_RECORD msptiActivityKernel {
  msptiActivityKind kind;
  uint64_t start, end;
  uint32_t device, stream;
  uint64_t correlation;
  const char* type;
  const char* name;
};

struct CONCORD_MSPTI_RECORD msptiActivityHccl {
  msptiActivityKind kind;
  uint64_t start, end;
  uint32_t device, stream;
  double bandwidth;
  const char* name;
  const char* communicator;
};

struct CONCORD_MSPTI_RECORD msptiActivityMemset {
  msptiActivityKind kind;
  uint32_t value;
  uint64_t bytes;
  uint64_t start, end;
  uint32_t device, stream;
  uint64_t correlation;
  uint8_t is_async;
};

struct CONCORD_MSPTI_RECORD msptiActivityMemcpy {
  msptiActivityKind kind;
  int32_t copy_kind;
  uint64_t bytes;
  uint64_t start, end;
  uint32_t device, stream;
  uint64_t correlation;
  uint8_t is_async;
};

static_assert(sizeof(msptiActivity) == 8 && sizeof(msptiActivityKernel) == 56 && sizeof(msptiActivityHccl) == 56);
static_assert(offsetof(msptiActivityKernel, start) == 4 && offsetof(msptiActivityKernel, name) == 44);
static_assert(sizeof(msptiActivityMemset) == 56 && sizeof(msptiActivityMemcpy) == 56);

using msptiSubscriberHandle = void*;
using msptiCallbackFunc = void(void* user, int32_t domain, uint32_t callback, const void* data);
using msptiBuffersCallbackRequestFunc = void(uint8_t** buffer, size_t* size, size_t* most_records);
using msptiBuffersCallbackCompleteFunc = void(uint8_t* buffer, size_t size, size_t valid_size);

namespace fn {
using msptiSubscribe = msptiResult(msptiSubscriberHandle*, msptiCallbackFunc*, void* user);
using msptiUnsubscribe = msptiResult(msptiSubscriberHandle);
using msptiActivityRegisterCallbacks = msptiResult(msptiBuffersCallbackRequestFunc*, msptiBuffersCallbackCompleteFunc*);
using msptiActivityEnable = msptiResult(msptiActivityKind);
using msptiActivityDisable = msptiResult(msptiActivityKind);
using msptiActivityFlushAll = msptiResult(uint32_t flag);
using msptiActivityGetNextRecord = msptiResult(uint8_t* buffer, size_t valid_size, msptiActivity** record);
}  // namespace fn

}  // namespace concord::ascend::abi
