// The constants of platform/abi/types.h as distinct C++ types.
#pragma once

#include <cstdint>

#include "platform/abi/concord.h"
#include "platform/sdk/dtypes.hpp"

namespace concord {

enum class DType : concord_dtype {
  kF32 = CONCORD_DTYPE_F32,
  kF64 = CONCORD_DTYPE_F64,
  kBF16 = CONCORD_DTYPE_BF16,
  kF16 = CONCORD_DTYPE_F16,
  kI8 = CONCORD_DTYPE_I8,
  kI16 = CONCORD_DTYPE_I16,
  kI32 = CONCORD_DTYPE_I32,
  kI64 = CONCORD_DTYPE_I64,
  kU8 = CONCORD_DTYPE_U8,
  kBool = CONCORD_DTYPE_BOOL,
};

enum class ReduceOp : concord_reduce_op {
  kSum = CONCORD_REDUCE_SUM,
  kProd = CONCORD_REDUCE_PROD,
  kMin = CONCORD_REDUCE_MIN,
  kMax = CONCORD_REDUCE_MAX,
  kAvg = CONCORD_REDUCE_AVG,
};

enum class CommOp : concord_comm_op {
  kAllReduce = CONCORD_COMM_ALL_REDUCE,
  kReduce = CONCORD_COMM_REDUCE,
  kBroadcast = CONCORD_COMM_BROADCAST,
  kAllGather = CONCORD_COMM_ALL_GATHER,
  kReduceScatter = CONCORD_COMM_REDUCE_SCATTER,
  kAllToAll = CONCORD_COMM_ALL_TO_ALL,
  kAllToAllV = CONCORD_COMM_ALL_TO_ALL_V,
  kP2p = CONCORD_COMM_P2P,
  kBarrier = CONCORD_COMM_BARRIER,
};

enum class CopyKind : concord_copy_kind {
  kHostToHost = CONCORD_COPY_HOST_TO_HOST,
  kHostToDevice = CONCORD_COPY_HOST_TO_DEVICE,
  kDeviceToHost = CONCORD_COPY_DEVICE_TO_HOST,
  kDeviceToDevice = CONCORD_COPY_DEVICE_TO_DEVICE,
};

// The number that the ABI takes.
constexpr concord_dtype abi(DType dtype) { return static_cast<concord_dtype>(dtype); }
constexpr concord_reduce_op abi(ReduceOp reduce) { return static_cast<concord_reduce_op>(reduce); }
constexpr concord_comm_op abi(CommOp operation) { return static_cast<concord_comm_op>(operation); }
constexpr concord_copy_kind abi(CopyKind kind) { return static_cast<concord_copy_kind>(kind); }

inline const char* to_string(DType dtype) { return sdk::dtype_name(abi(dtype)); }
inline const char* to_string(ReduceOp reduce) { return sdk::reduce_name(abi(reduce)); }
inline const char* to_string(CommOp operation) {
  switch (operation) {
    case CommOp::kAllReduce: return "all_reduce";
    case CommOp::kReduce: return "reduce";
    case CommOp::kBroadcast: return "broadcast";
    case CommOp::kAllGather: return "all_gather";
    case CommOp::kReduceScatter: return "reduce_scatter";
    case CommOp::kAllToAll: return "all_to_all";
    case CommOp::kAllToAllV: return "all_to_all_v";
    case CommOp::kP2p: return "p2p";
    case CommOp::kBarrier: return "barrier";
  }
  return "unknown";
}

// Bytes of one element.
inline int64_t size_of(DType dtype) { return sdk::dtype_size(abi(dtype)); }

}  // namespace concord
