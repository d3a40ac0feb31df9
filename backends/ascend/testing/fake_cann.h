// A minimal fake of CANN, for unit tests of cases that the simulator does not cover: a test chooses the result codes,
// and the calls are logged. Device memory is host memory; streams run work immediately.
// Threads: one thread; only the current device is per thread.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "backends/ascend/cann.h"

namespace concord::ascend::testing {

struct FakeState {
  std::vector<std::string> calls;              // by name, in order
  std::map<std::string, int> answers;          // results of calls, if not 0
  std::map<std::string, int> answer_to_first;  // like answer_to, for the first call only
  uint32_t devices = 2;
  abi::HcclResult async_error = abi::kHcclSuccess;
  std::vector<abi::HcclSendRecvItem> items;  // of the last HcclBatchSendRecv
  std::vector<uint32_t> sub_ranks;           // of the last HcclCreateSubCommConfig
  std::vector<uint64_t> sub_ids;             // ids of all sub-communicators
};

inline FakeState& fake() {
  static FakeState state;
  return state;
}

inline thread_local int32_t fake_device = -1;

// Logs a call and returns its result.
inline int called(const char* name) {
  fake().calls.emplace_back(name);
  if (const auto first = fake().answer_to_first.find(name); first != fake().answer_to_first.end()) {
    const int answer = first->second;
    fake().answer_to_first.erase(first);
    return answer;
  }
  const auto found = fake().answers.find(name);
  return found != fake().answers.end() ? found->second : 0;
}

inline int calls_of(const std::string& name) {
  int count = 0;
  for (const std::string& call : fake().calls) count += call == name ? 1 : 0;
  return count;
}

inline abi::HcclResult hccl_called(const char* name) { return static_cast<abi::HcclResult>(called(name)); }

inline void fake_devices(Acl& acl) {
  acl.aclInit = [](const char*) { return called("aclInit"); };
  acl.aclGetRecentErrMsg = []() -> const char* { return "the vendor's\nown words\n"; };
  acl.aclrtGetSocName = []() -> const char* { return "Ascend910B1"; };
  acl.aclrtGetDeviceCount = [](uint32_t* count) {
    *count = fake().devices;
    return called("aclrtGetDeviceCount");
  };
  acl.aclrtSetDevice = [](int32_t device) {
    fake_device = device;
    return called("aclrtSetDevice");
  };
  acl.aclrtGetDevice = [](int32_t* device) {
    const int answer = called("aclrtGetDevice");
    if (answer == 0 && fake_device < 0) return abi::kRtContextNull;
    *device = fake_device;
    return answer;
  };
  acl.aclrtSynchronizeDevice = [] { return called("aclrtSynchronizeDevice"); };
  acl.aclrtDeviceCanAccessPeer = [](int32_t* can, int32_t, int32_t) {
    *can = 1;
    return called("aclrtDeviceCanAccessPeer");
  };
  acl.aclrtDeviceEnablePeerAccess = [](int32_t, uint32_t) { return called("aclrtDeviceEnablePeerAccess"); };
}

inline void fake_memory(Acl& acl) {
  acl.aclrtMalloc = [](void** pointer, size_t bytes, abi::aclrtMemMallocPolicy) {
    *pointer = std::malloc(bytes);
    return called("aclrtMalloc");
  };
  acl.aclrtFree = [](void* pointer) {
    std::free(pointer);
    return called("aclrtFree");
  };
  acl.aclrtMemcpy = [](void* to, size_t, const void* from, size_t bytes, abi::aclrtMemcpyKind) {
    std::memcpy(to, from, bytes);
    return called("aclrtMemcpy");
  };
  acl.aclrtMemcpyAsync = [](void* to, size_t, const void* from, size_t bytes, abi::aclrtMemcpyKind, abi::aclrtStream) {
    std::memcpy(to, from, bytes);
    return called("aclrtMemcpyAsync");
  };
  acl.aclrtGetMemInfo = [](abi::aclrtMemAttr, size_t* free, size_t* total) {
    *free = 1000;
    *total = 2000;
    return called("aclrtGetMemInfo");
  };
  acl.aclrtCreateStreamWithConfig = [](abi::aclrtStream* stream, uint32_t, uint32_t) {
    *stream = new int(0);
    return called("aclrtCreateStreamWithConfig");
  };
  acl.aclrtDestroyStream = [](abi::aclrtStream stream) {
    delete static_cast<int*>(stream);
    return called("aclrtDestroyStream");
  };
  acl.aclrtSynchronizeStream = [](abi::aclrtStream) { return called("aclrtSynchronizeStream"); };
  acl.aclrtCreateEventExWithFlag = [](abi::aclrtEvent* event, uint32_t) {
    *event = new int(0);
    return called("aclrtCreateEventExWithFlag");
  };
  acl.aclrtDestroyEvent = [](abi::aclrtEvent event) {
    delete static_cast<int*>(event);
    return called("aclrtDestroyEvent");
  };
  acl.aclrtRecordEvent = [](abi::aclrtEvent, abi::aclrtStream) { return called("aclrtRecordEvent"); };
  acl.aclrtStreamWaitEvent = [](abi::aclrtStream, abi::aclrtEvent) { return called("aclrtStreamWaitEvent"); };
}

inline Acl fake_acl() {
  Acl acl;
  fake_devices(acl);
  fake_memory(acl);
  acl.version = "8.5.0";
  return acl;
}

inline Hccl fake_hccl() {
  Hccl hccl;
  hccl.HcclGetErrorString = [](abi::HcclResult) -> const char* { return "HCCL's own words"; };
  hccl.HcclGetRootInfo = [](abi::HcclRootInfo* root) {
    std::memset(root, 7, sizeof *root);
    return hccl_called("HcclGetRootInfo");
  };
  hccl.HcclCommInitRootInfo = [](uint32_t, const abi::HcclRootInfo*, uint32_t, abi::HcclComm* comm) {
    *comm = &fake();
    return hccl_called("HcclCommInitRootInfo");
  };
  hccl.HcclCreateSubCommConfig = [](abi::HcclComm*, uint32_t count, uint32_t* ranks, uint64_t id, uint32_t,
                                    abi::HcclCommConfig*, abi::HcclComm* comm) {
    fake().sub_ranks.assign(ranks, ranks + count);
    fake().sub_ids.push_back(id);
    *comm = ranks != nullptr ? &fake() : nullptr;
    return hccl_called("HcclCreateSubCommConfig");
  };
  hccl.HcclCommDestroy = [](abi::HcclComm) { return hccl_called("HcclCommDestroy"); };
  hccl.HcclGetCommAsyncError = [](abi::HcclComm, abi::HcclResult* error) {
    *error = fake().async_error;
    return hccl_called("HcclGetCommAsyncError");
  };
  hccl.HcclAllReduce = [](void*, void*, uint64_t, abi::HcclDataType, abi::HcclReduceOp, abi::HcclComm,
                          abi::aclrtStream) { return hccl_called("HcclAllReduce"); };
  hccl.HcclBroadcast = [](void*, uint64_t, abi::HcclDataType, uint32_t, abi::HcclComm, abi::aclrtStream) {
    return hccl_called("HcclBroadcast");
  };
  hccl.HcclBatchSendRecv = [](abi::HcclSendRecvItem* items, uint32_t count, abi::HcclComm, abi::aclrtStream) {
    fake().items.assign(items, items + count);
    return hccl_called("HcclBatchSendRecv");
  };
  return hccl;
}

}  // namespace concord::ascend::testing
