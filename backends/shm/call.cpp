#include "backends/shm/call.h"

#include "platform/sdk/dtypes.hpp"

namespace concord::shm {
namespace {

const char* operation_name(concord_comm_op operation) {
  switch (operation) {
    case CONCORD_COMM_ALL_REDUCE: return "all_reduce";
    case CONCORD_COMM_REDUCE: return "reduce";
    case CONCORD_COMM_BROADCAST: return "broadcast";
    case CONCORD_COMM_ALL_GATHER: return "all_gather";
    case CONCORD_COMM_REDUCE_SCATTER: return "reduce_scatter";
    case CONCORD_COMM_ALL_TO_ALL: return "all_to_all";
    case CONCORD_COMM_ALL_TO_ALL_V: return "all_to_all_v";
    case CONCORD_COMM_P2P: return "batch_p2p";
    case CONCORD_COMM_BARRIER: return "barrier";
    case kSetUp: return "set-up";
    case kSplit: return "split";
    default: return "an unknown operation";
  }
}

}  // namespace

uint64_t Call::head() const {
  return static_cast<uint64_t>(static_cast<uint8_t>(operation)) |
         static_cast<uint64_t>(static_cast<uint8_t>(dtype)) << 8 |
         static_cast<uint64_t>(static_cast<uint8_t>(reduce)) << 16 |
         static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32;
}

Call Call::unpack(uint64_t head, uint64_t tail) {
  Call call;
  call.operation = static_cast<uint8_t>(head);
  call.dtype = static_cast<uint8_t>(head >> 8);
  call.reduce = static_cast<uint8_t>(head >> 16);
  call.root = static_cast<int32_t>(head >> 32);
  call.count = static_cast<int64_t>(tail);
  return call;
}

std::string describe(const Call& call) {
  std::string arguments;
  if (call.dtype != 0) arguments = sdk::dtype_name(call.dtype);
  if (call.count > 0 || (call.dtype != 0 && call.operation != CONCORD_COMM_ALL_TO_ALL_V)) {
    arguments += sdk::text("%sx %lld", arguments.empty() ? "" : " ", static_cast<long long>(call.count));
  }
  if (call.reduce != 0) arguments += sdk::text(", %s", sdk::reduce_name(call.reduce));
  if (call.root >= 0) arguments += sdk::text(", root %d", call.root);
  const std::string name = operation_name(call.operation);
  return arguments.empty() ? name : name + "(" + arguments + ")";
}

}  // namespace concord::shm
