// Interposes between the ascend plugin and the simulated CANN, so that the plugin appears to ignore a rule of Ascend:
// the defect named by CONCORD_MUTANT changes how one function is called; everything else is passed through. The plugin
// loads this library as CANN (CONCORD_ASCEND_ACL, _HCCL, _OPAPI); symbols that are not defined here come from the
// simulator's libraries, which it needs.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "backends/ascend/acl_abi.h"
#include "backends/ascend/aclnn_abi.h"
#include "backends/ascend/hccl_abi.h"

namespace {

using namespace concord::ascend::abi;

bool is(const char* defect) {
  static const std::string chosen = std::getenv("CONCORD_MUTANT") != nullptr ? std::getenv("CONCORD_MUTANT") : "";
  return chosen == defect;
}

// Returns the simulator's own |name|.
void* find(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_LAZY);
  void* address = handle != nullptr ? dlsym(handle, name) : nullptr;
  if (address == nullptr) {
    std::fprintf(stderr, "ascend_defects: %s has no %s\n", library, name);
    std::abort();
  }
  return address;
}

template <class Function>
Function* found(const char* library, const char* name) {
  return reinterpret_cast<Function*>(find(library, name));
}

constexpr const char* kAcl = "libascendcl.so";
constexpr const char* kHccl = "libhccl.so";
constexpr const char* kOpapi = "libopapi.so";

}  // namespace

#define REAL(library, name)                                        \
  ([]() -> fn::name& {                                             \
    static fn::name* const real = found<fn::name>(library, #name); \
    return *real;                                                  \
  }())
#define EXPORTED extern "C" __attribute__((visibility("default")))

// ------------------------------------------------------------------------------------------------ events and streams

EXPORTED aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flags) {
  if (is("EventsWouldNeedAReset")) return REAL(kAcl, aclrtCreateEventWithFlag)(event, flags);
  if (is("EventsHaveNoSyncFlag")) flags &= ~kEventSync;
  if (is("EventsHaveNoTime")) flags &= ~kEventTimeLine;
  return REAL(kAcl, aclrtCreateEventExWithFlag)(event, flags);
}

EXPORTED aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  const aclError error = REAL(kAcl, aclrtQueryEventStatus)(event, status);
  if (is("EventStatusCountsDown")) {
    *status = *status == kEventRecordedComplete ? kEventRecordedNotReady : kEventRecordedComplete;
  }
  return error;
}

EXPORTED aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  const aclError error = REAL(kAcl, aclrtStreamQuery)(stream, status);
  if (is("StreamStatusCountsUp")) *status = *status == kStreamComplete ? kStreamNotReady : kStreamComplete;
  return error;
}

// ----------------------------------------------------------------------------------------------- devices and threads

EXPORTED aclError aclrtGetDevice(int32_t* device) {
  const aclError error = REAL(kAcl, aclrtGetDevice)(device);
  if (error != kRtContextNull || !is("NewThreadsGetNoDevice")) return error;
  *device = 0;  // like CUDA, so that no caller sets one
  return kAclSuccess;
}

EXPORTED aclError aclrtSetDevice(int32_t device) {
  thread_local bool has_one = false;
  if (is("AThreadKeepsItsFirstDevice") && has_one) return kAclSuccess;
  has_one = true;
  return REAL(kAcl, aclrtSetDevice)(device);
}

// ------------------------------------------------------------------------------------------------------------ memory

EXPORTED aclError aclrtMemcpyAsync(void* destination, size_t room, const void* source, size_t bytes,
                                   aclrtMemcpyKind kind, aclrtStream stream) {
  if (is("TheRoomOfACopyIsTooSmall")) room = bytes - 1;
  if (is("TheDirectionOfACopyIsWrong") && kind == kMemcpyHostToDevice) kind = kMemcpyDeviceToHost;
  if (is("BroadcastTakesNoSecondBuffer") && kind == kMemcpyDeviceToDevice) return kAclSuccess;
  return REAL(kAcl, aclrtMemcpyAsync)(destination, room, source, bytes, kind, stream);
}

EXPORTED aclError aclrtMemsetAsync(void* destination, size_t room, int32_t value, size_t bytes, aclrtStream stream) {
  if (is("TheRoomOfAFillIsTooSmall")) room = bytes - 1;
  return REAL(kAcl, aclrtMemsetAsync)(destination, room, value, bytes, stream);
}

EXPORTED aclError aclrtMallocHost(void** pointer, size_t bytes) {
  if (!is("HostMemoryIsPageable")) return REAL(kAcl, aclrtMallocHost)(pointer, bytes);
  *pointer = std::malloc(bytes);
  return kAclSuccess;
}

EXPORTED aclError aclrtFreeHost(void* pointer) {
  if (!is("HostMemoryIsPageable")) return REAL(kAcl, aclrtFreeHost)(pointer);
  std::free(pointer);
  return kAclSuccess;
}

// -------------------------------------------------------------------------------------------------------------- HCCL

EXPORTED HcclResult HcclAllReduce(void* send, void* recv, uint64_t count, HcclDataType dtype, HcclReduceOp op,
                                  HcclComm comm, aclrtStream stream) {
  if (is("HcclGetsTheNullStream")) stream = nullptr;
  return REAL(kHccl, HcclAllReduce)(send, recv, count, dtype, op, comm, stream);
}

EXPORTED HcclResult HcclReduce(void* send, void* recv, uint64_t count, HcclDataType dtype, HcclReduceOp op,
                               uint32_t root, HcclComm comm, aclrtStream stream) {
  uint32_t rank = 0;
  REAL(kHccl, HcclGetRankId)(comm, &rank);
  if (is("RanksWithoutAResultPassNull") && rank != root) recv = nullptr;
  return REAL(kHccl, HcclReduce)(send, recv, count, dtype, op, root, comm, stream);
}

EXPORTED HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, HcclComm comm, aclrtStream stream) {
  if (!is("TransfersGoOneByOne")) return REAL(kHccl, HcclBatchSendRecv)(items, count, comm, stream);
  for (const HcclSendRecvItem* item = items; item != items + count; ++item) {
    auto& transfer = item->sendRecvType == kHcclSend ? REAL(kHccl, HcclSend) : REAL(kHccl, HcclRecv);
    const HcclResult result = transfer(item->buf, item->count, item->dataType, item->remoteRank, comm, stream);
    if (result != kHcclSuccess) return result;
  }
  return kHcclSuccess;
}

EXPORTED HcclResult HcclCreateSubCommConfig(HcclComm* first, uint32_t count, uint32_t* ranks, uint64_t id,
                                            uint32_t rank, HcclCommConfig* config, HcclComm* out) {
  if (is("TheConfigIsNotInitialised")) *config = HcclCommConfig{};
  return REAL(kHccl, HcclCreateSubCommConfig)(first, count, ranks, id, rank, config, out);
}

EXPORTED HcclResult HcclAlltoAllV(const void* send, const void* send_counts, const void* send_displacements,
                                  HcclDataType send_dtype, const void* recv, const void* recv_counts,
                                  const void* recv_displacements, HcclDataType recv_dtype, HcclComm comm,
                                  aclrtStream stream) {
  if (is("DisplacementsOfAllToAllVAreLost")) recv_displacements = send_displacements;
  return REAL(kHccl, HcclAlltoAllV)(send, send_counts, send_displacements, send_dtype, recv, recv_counts,
                                    recv_displacements, recv_dtype, comm, stream);
}

// --------------------------------------------------------------------------------------------------------- operators

EXPORTED aclnnStatus aclnnInplaceDivs(void* workspace, uint64_t bytes, aclOpExecutor* executor, aclrtStream stream) {
  if (is("AnAverageIsNotDivided")) return 0;
  return REAL(kOpapi, aclnnInplaceDivs)(workspace, bytes, executor, stream);
}
