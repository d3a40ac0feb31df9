// The functions that libhccl.so exports, for the files that define them and the tests that call them. Types are from
// hccl_abi.h, so a definition that differs does not compile.
#pragma once

#include "backends/ascend/hccl_abi.h"
#include "backends/ascend/sim/runtime/acl/acl.h"

#define CONCORD_SIM_HCCL(name) CONCORD_SIM_EXPORT concord::ascend::abi::fn::name name

extern "C" {
CONCORD_SIM_HCCL(HcclGetRootInfo);
CONCORD_SIM_HCCL(HcclCommInitRootInfo);
CONCORD_SIM_HCCL(HcclCommInitRootInfoConfig);
CONCORD_SIM_HCCL(HcclCreateSubCommConfig);
CONCORD_SIM_HCCL(HcclCommDestroy);
CONCORD_SIM_HCCL(HcclCommSuspend);
CONCORD_SIM_HCCL(HcclCommResume);
CONCORD_SIM_HCCL(HcclGetRankSize);
CONCORD_SIM_HCCL(HcclGetRankId);
CONCORD_SIM_HCCL(HcclGetCommName);
CONCORD_SIM_HCCL(HcclGetCommAsyncError);
CONCORD_SIM_HCCL(HcclGetErrorString);
CONCORD_SIM_HCCL(HcclGetCommConfigCapability);

CONCORD_SIM_HCCL(HcclBarrier);
CONCORD_SIM_HCCL(HcclAllReduce);
CONCORD_SIM_HCCL(HcclBroadcast);
CONCORD_SIM_HCCL(HcclAllGather);
CONCORD_SIM_HCCL(HcclReduceScatter);
CONCORD_SIM_HCCL(HcclReduce);
CONCORD_SIM_HCCL(HcclScatter);
CONCORD_SIM_HCCL(HcclSend);
CONCORD_SIM_HCCL(HcclRecv);
CONCORD_SIM_HCCL(HcclBatchSendRecv);
CONCORD_SIM_HCCL(HcclAlltoAll);
CONCORD_SIM_HCCL(HcclAlltoAllV);

// Functions that only torch_npu looks up.
CONCORD_SIM_EXPORT concord::ascend::abi::HcclResult HcclSetConfig(int32_t config, int32_t value);
CONCORD_SIM_EXPORT concord::ascend::abi::HcclResult HcclAllGatherV(void* send, uint64_t send_count, void* recv,
                                                                   const void* recv_counts, const void* recv_offsets,
                                                                   concord::ascend::abi::HcclDataType,
                                                                   concord::ascend::abi::HcclComm, void* stream);
CONCORD_SIM_EXPORT concord::ascend::abi::HcclResult HcclReduceScatterV(void* send, const void* send_counts,
                                                                       const void* send_offsets, void* recv,
                                                                       uint64_t recv_count,
                                                                       concord::ascend::abi::HcclDataType,
                                                                       concord::ascend::abi::HcclReduceOp,
                                                                       concord::ascend::abi::HcclComm, void* stream);
CONCORD_SIM_EXPORT concord::ascend::abi::HcclResult HcclAlltoAllVC(const void* send, const void* send_count_matrix,
                                                                   concord::ascend::abi::HcclDataType, const void* recv,
                                                                   concord::ascend::abi::HcclDataType,
                                                                   concord::ascend::abi::HcclComm, void* stream);
}
