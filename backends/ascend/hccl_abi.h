// Own declarations of the part of HCCL (CANN 8.1 to 9.x) that this backend uses, in the manner of acl_abi.h: types and
// function types have the vendor's names, in namespace abi, constants names of this project; no symbol is declared.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/ascend/acl_abi.h"

namespace concord::ascend::abi {

using HcclComm = void*;

enum HcclResult : uint32_t {
  kHcclSuccess = 0,
  kHcclPara = 1,
  kHcclPtr = 2,
  kHcclMemory = 3,
  kHcclInternal = 4,
  kHcclNotSupport = 5,
  kHcclNotFound = 6,
  kHcclUnavail = 7,
  kHcclSyscall = 8,
  kHcclTimeout = 9,
  kHcclOpenFile = 10,
  kHcclTcpConnect = 11,
  kHcclRoceConnect = 12,
  kHcclTcpTransfer = 13,
  kHcclRoceTransfer = 14,
  kHcclRuntime = 15,
  kHcclDrv = 16,
  kHcclProfiling = 17,
  kHcclCce = 18,
  kHcclNetwork = 19,
  kHcclAgain = 20,
  kHcclRemote = 21,
  kHcclSuspending = 22,
  kHcclOpRetryFail = 23,
  kHcclOom = 24,
};

// HCCL has no average.
enum HcclReduceOp : uint32_t { kHcclSum = 0, kHcclProd = 1, kHcclMax = 2, kHcclMin = 3 };

enum HcclDataType : uint32_t {
  kHcclInt8 = 0,
  kHcclInt16 = 1,
  kHcclInt32 = 2,
  kHcclFp16 = 3,
  kHcclFp32 = 4,
  kHcclInt64 = 5,
  kHcclUint64 = 6,
  kHcclUint8 = 7,
  kHcclUint16 = 8,
  kHcclUint32 = 9,
  kHcclFp64 = 10,
  kHcclBfp16 = 11,
  kHcclInt128 = 12,
};

inline constexpr size_t kHcclRootInfoBytes = 4108;
struct HcclRootInfo {
  char internal[kHcclRootInfoBytes];
};

enum HcclSendRecvType : uint32_t { kHcclSend = 0, kHcclRecv = 1 };
struct HcclSendRecvItem {
  HcclSendRecvType sendRecvType;
  void* buf;
  uint64_t count;
  HcclDataType dataType;
  uint32_t remoteRank;
};

// Version 5 of the struct, which every later library reads too: it copies |size| bytes. The vendor initialises it by an
// inline function, this plugin by comm_config in hccl.cpp.
inline constexpr uint32_t kHcclConfigMagic = 0xf0f0f0f0;
inline constexpr uint32_t kHcclConfigVersion = 5;
inline constexpr uint32_t kHcclConfigNotSet = 0xffffffff;
struct HcclCommConfig {
  size_t size;
  uint32_t magic;
  uint32_t version;
  uint64_t reserved;
  uint32_t hcclBufferSize;  // MB; every rank allocates two
  uint32_t hcclDeterministic;
  char hcclCommName[128];
  char hcclUdi[128];
  uint32_t hcclOpExpansionMode;  // 0: the default
  uint32_t hcclRdmaTrafficClass;
  uint32_t hcclRdmaServiceLevel;
};
inline constexpr size_t kHcclConfigBytes = 300;  // without trailing padding

// The id that a rank passes, with no ranks, if it is not a member of a sub-communicator.
inline constexpr uint64_t kHcclNoSubComm = 0xffffffff;

namespace fn {
// clang-format off
using HcclGetRootInfo = HcclResult(HcclRootInfo*);
using HcclCommInitRootInfo = HcclResult(uint32_t ranks, const HcclRootInfo*, uint32_t rank, HcclComm*);
using HcclCommInitRootInfoConfig = HcclResult(uint32_t ranks, const HcclRootInfo*, uint32_t rank, const HcclCommConfig*, HcclComm*);
using HcclCreateSubCommConfig = HcclResult(HcclComm* world, uint32_t ranks, uint32_t* rank_ids, uint64_t sub_comm_id, uint32_t sub_rank, HcclCommConfig*, HcclComm*);
using HcclCommDestroy = HcclResult(HcclComm);
using HcclCommSuspend = HcclResult(HcclComm);
using HcclCommResume = HcclResult(HcclComm);
using HcclGetRankSize = HcclResult(HcclComm, uint32_t*);
using HcclGetRankId = HcclResult(HcclComm, uint32_t*);
using HcclGetCommName = HcclResult(HcclComm, char*);
using HcclGetCommAsyncError = HcclResult(HcclComm, HcclResult*);
using HcclGetErrorString = const char*(HcclResult);
using HcclGetCommConfigCapability = uint32_t();

using HcclBarrier = HcclResult(HcclComm, aclrtStream);
using HcclAllReduce = HcclResult(void* send, void* recv, uint64_t, HcclDataType, HcclReduceOp, HcclComm, aclrtStream);
using HcclBroadcast = HcclResult(void* buffer, uint64_t, HcclDataType, uint32_t root, HcclComm, aclrtStream);
using HcclAllGather = HcclResult(void* send, void* recv, uint64_t send_count, HcclDataType, HcclComm, aclrtStream);
using HcclReduceScatter = HcclResult(void* send, void* recv, uint64_t recv_count, HcclDataType, HcclReduceOp, HcclComm, aclrtStream);
using HcclReduce = HcclResult(void* send, void* recv, uint64_t, HcclDataType, HcclReduceOp, uint32_t root, HcclComm, aclrtStream);
using HcclScatter = HcclResult(void* send, void* recv, uint64_t recv_count, HcclDataType, uint32_t root, HcclComm, aclrtStream);
using HcclSend = HcclResult(void*, uint64_t, HcclDataType, uint32_t peer, HcclComm, aclrtStream);
using HcclRecv = HcclResult(void*, uint64_t, HcclDataType, uint32_t peer, HcclComm, aclrtStream);
using HcclBatchSendRecv = HcclResult(HcclSendRecvItem*, uint32_t count, HcclComm, aclrtStream);
using HcclAlltoAll = HcclResult(const void* send, uint64_t send_count, HcclDataType, const void* recv, uint64_t recv_count, HcclDataType, HcclComm, aclrtStream);
// Counts and displacements: uint64_t[], in elements.
using HcclAlltoAllV = HcclResult(const void* send, const void* send_counts, const void* send_displacements, HcclDataType, const void* recv, const void* recv_counts, const void* recv_displacements, HcclDataType, HcclComm, aclrtStream);
// clang-format on
}  // namespace fn

}  // namespace concord::ascend::abi
