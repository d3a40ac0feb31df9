#include "backends/ascend/comm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "backends/ascend/status.h"

namespace concord::ascend {
namespace {

std::optional<abi::HcclDataType> reduced_dtype(concord_dtype dtype, bool has_f64) {
  switch (dtype) {
    case CONCORD_DTYPE_F32: return abi::kHcclFp32;
    case CONCORD_DTYPE_F16: return abi::kHcclFp16;
    case CONCORD_DTYPE_BF16: return abi::kHcclBfp16;
    case CONCORD_DTYPE_I8:
    case CONCORD_DTYPE_BOOL: return abi::kHcclInt8;
    case CONCORD_DTYPE_I16: return abi::kHcclInt16;
    case CONCORD_DTYPE_I32: return abi::kHcclInt32;
    case CONCORD_DTYPE_I64: return abi::kHcclInt64;
    case CONCORD_DTYPE_F64: return has_f64 ? std::optional(abi::kHcclFp64) : std::nullopt;
    default: return std::nullopt;
  }
}

abi::HcclReduceOp reduced_by(concord_dtype dtype, concord_reduce_op reduce) {
  const bool logical = dtype == CONCORD_DTYPE_BOOL;
  switch (reduce) {
    case CONCORD_REDUCE_PROD: return logical ? abi::kHcclMin : abi::kHcclProd;
    case CONCORD_REDUCE_MIN: return abi::kHcclMin;
    case CONCORD_REDUCE_MAX: return abi::kHcclMax;
    default: return logical ? abi::kHcclMax : abi::kHcclSum;  // an average is a sum first
  }
}

uint64_t bytes_of(int64_t count, concord_dtype dtype) {
  return static_cast<uint64_t>(sdk::element_bytes(count, dtype));
}

void* mutable_pointer(const void* pointer) { return const_cast<void*>(pointer); }  // HCCL's C has no const

}  // namespace

// ---------------------------------------------------------------------------------------------------- joining, ending

void pass_timeouts(const char* seconds) {
  if (seconds == nullptr || *seconds == '\0') return;
  char* end = nullptr;
  const long long wanted = std::strtoll(seconds, &end, 10);
  if (*end != '\0' || wanted < 1 || wanted > INT32_MAX) {
    sdk::invalid(sdk::text(
        "comm.timeout (CONCORD_COMM_TIMEOUT) is '%s'; it must be a number of seconds from 1 to 2147483647", seconds));
  }
  ::setenv("HCCL_CONNECT_TIMEOUT", std::to_string(std::clamp(wanted, 120ll, 7200ll)).c_str(), 0);
  ::setenv("HCCL_EXEC_TIMEOUT", std::to_string(wanted).c_str(), 0);
}

Communicators::Communicators(Devices& devices, Memory& memory, const Hccl& hccl, const Averages& averages)
    : devices_(devices),
      memory_(memory),
      hccl_(hccl),
      averages_(averages),
      has_f64_(devices.soc_name().starts_with("Ascend950")) {
  pass_timeouts(sdk::config("comm.timeout"));
}

void Communicators::create_id(void* out_id) {
  devices_.ensure_current();
  abi::HcclRootInfo root{};
  check_hccl(hccl_, hccl_.HcclGetRootInfo(&root), "HcclGetRootInfo");
  std::memcpy(out_id, &root, sizeof root);
}

concord_comm Communicators::adopt(std::unique_ptr<Communicator> communicator) {
  if (communicator == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  live_.push_back(communicator.get());
  return reinterpret_cast<concord_comm>(communicator.release());
}

concord_comm Communicators::join(int32_t device, int32_t world, int32_t rank, const void* id,
                                 const sdk::CommConfig& config) {
  devices_.check(device);
  abi::HcclRootInfo root;
  std::memcpy(&root, id, sizeof root);
  return adopt(Communicator::join(memory_, devices_, hccl_, device, world, rank, root, config));
}

concord_comm Communicators::split_off(Communicator& parent, std::span<const int32_t> ranks,
                                      const sdk::CommConfig& config) {
  return adopt(parent.split(ranks.data(), static_cast<int32_t>(ranks.size()), config));
}

void Communicators::destroy(concord_comm comm) {
  std::unique_ptr<Communicator> ended;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(live_.begin(), live_.end(), reinterpret_cast<Communicator*>(comm));
    if (found == live_.end()) {
      sdk::invalid(sdk::text("%p is not a live communicator of this plugin", static_cast<const void*>(comm)));
    }
    ended.reset(*found);
    live_.erase(found);
  }
}

Communicator& Communicators::find(concord_comm comm) {
  if (comm == nullptr) sdk::invalid("the communicator is null");
  return *reinterpret_cast<Communicator*>(comm);
}

Communicator& Communicators::find(concord_comm comm, concord_stream stream) {
  Communicator& found = find(comm);
  if (stream == nullptr) devices_.device_of(stream);  // throws
  const auto device = devices_.streams.find(stream);
  if (device && *device != found.device()) {
    sdk::invalid(
        sdk::text("the stream belongs to device %d and the communicator to device %d", *device, found.device()));
  }
  return found;
}

void Communicators::copy(Communicator& comm, const void* from, void* to, int64_t bytes, concord_stream stream) {
  comm.check();
  if (from == to || bytes == 0) return;
  comm.turn_to(stream);
  const auto size = static_cast<size_t>(bytes);
  const Acl& acl = devices_.acl();
  check_acl(acl, acl.aclrtMemcpyAsync(to, size, from, size, abi::kMemcpyDeviceToDevice, vendor(stream)),
            "aclrtMemcpyAsync (within a rank)");
}

bool Communicators::complete_locally(Communicator& comm, const sdk::Transfer& call, concord_stream stream) {
  if (comm.size() > 1 && call.count > 0) return false;
  copy(comm, call.send, call.recv, comm.size() == 1 ? sdk::element_bytes(call.count, call.dtype) : 0, stream);
  return true;
}

// --------------------------------------------------------------------------------------------------------- reductions

std::optional<Communicators::Reduction> Communicators::find_reduction(concord_dtype dtype,
                                                                      concord_reduce_op reduce) const {
  const auto type = reduced_dtype(dtype, has_f64_);
  if (!type) return std::nullopt;
  const bool average = reduce == CONCORD_REDUCE_AVG;
  if (average && !averages_.supports(dtype)) return std::nullopt;
  const bool no_product = dtype == CONCORD_DTYPE_I16 || dtype == CONCORD_DTYPE_BF16;
  if (reduce == CONCORD_REDUCE_PROD && no_product) return std::nullopt;
  return Reduction{*type, reduced_by(dtype, reduce), average};
}

Communicators::Reduction Communicators::reduction(concord_dtype dtype, concord_reduce_op reduce) const {
  if (const auto found = find_reduction(dtype, reduce)) return *found;
  const bool average = reduce == CONCORD_REDUCE_AVG && !averages_.reason().empty();
  sdk::fail(CONCORD_STATUS_UNIMPLEMENTED,
            sdk::text("HCCL does not support %s of %s on this chip; check comm.supports and reduce another type%s%s",
                      sdk::reduce_name(reduce), sdk::dtype_name(dtype), average ? ". No averages: " : "",
                      average ? averages_.reason().c_str() : ""));
}

void Communicators::divide(Communicator& comm, void* data, int64_t count, concord_dtype dtype, concord_stream stream) {
  averages_.divide(data, count, dtype, comm.size(), stream, [&](int64_t bytes) { return comm.scratch(bytes, stream); });
}

void Communicators::run(Communicator& comm, const sdk::AllReduce& call, concord_stream stream) {
  const Reduction how = reduction(call.dtype, call.reduce);
  const DeviceGuard here(devices_, comm.device());
  if (complete_locally(comm, call, stream)) return;
  comm.enqueue("HcclAllReduce", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclAllReduce(mutable_pointer(call.send), call.recv, static_cast<uint64_t>(call.count), how.dtype,
                               how.op, hccl, vendor(stream));
  });
  if (how.divide) divide(comm, call.recv, call.count, call.dtype, stream);
}

void Communicators::run(Communicator& comm, const sdk::Reduce& call, concord_stream stream) {
  const Reduction how = reduction(call.dtype, call.reduce);
  const DeviceGuard here(devices_, comm.device());
  if (complete_locally(comm, call, stream)) return;
  const bool is_root = comm.rank() == call.root;
  void* result = is_root ? call.recv : comm.scratch(sdk::element_bytes(call.count, call.dtype), stream);
  comm.enqueue("HcclReduce", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclReduce(mutable_pointer(call.send), result, static_cast<uint64_t>(call.count), how.dtype, how.op,
                            static_cast<uint32_t>(call.root), hccl, vendor(stream));
  });
  if (how.divide && is_root) divide(comm, call.recv, call.count, call.dtype, stream);
}

void Communicators::run(Communicator& comm, const sdk::ReduceScatter& call, concord_stream stream) {
  const Reduction how = reduction(call.dtype, call.reduce);
  const DeviceGuard here(devices_, comm.device());
  if (complete_locally(comm, call, stream)) return;
  comm.enqueue("HcclReduceScatter", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclReduceScatter(mutable_pointer(call.send), call.recv, static_cast<uint64_t>(call.count), how.dtype,
                                   how.op, hccl, vendor(stream));
  });
  if (how.divide) divide(comm, call.recv, call.count, call.dtype, stream);
}

void Communicators::run(Communicator& comm, const sdk::Barrier&, concord_stream stream) {
  if (comm.size() == 1) return comm.check();
  const DeviceGuard here(devices_, comm.device());
  comm.enqueue("HcclAllReduce (barrier)", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclAllReduce(comm.word(), comm.word(), 1, abi::kHcclInt32, abi::kHcclMax, hccl, vendor(stream));
  });
}

// ------------------------------------------------------------------------------------------------------ data movement

void Communicators::run(Communicator& comm, const sdk::Broadcast& call, concord_stream stream) {
  const DeviceGuard here(devices_, comm.device());
  if (comm.rank() == call.root) copy(comm, call.send, call.recv, sdk::element_bytes(call.count, call.dtype), stream);
  if (comm.size() == 1 || call.count == 0) return comm.check();
  comm.enqueue("HcclBroadcast", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclBroadcast(call.recv, bytes_of(call.count, call.dtype), abi::kHcclInt8,
                               static_cast<uint32_t>(call.root), hccl, vendor(stream));
  });
}

void Communicators::run(Communicator& comm, const sdk::AllGather& call, concord_stream stream) {
  const DeviceGuard here(devices_, comm.device());
  if (complete_locally(comm, call, stream)) return;
  comm.enqueue("HcclAllGather", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclAllGather(mutable_pointer(call.send), call.recv, bytes_of(call.count, call.dtype), abi::kHcclInt8,
                               hccl, vendor(stream));
  });
}

void Communicators::run(Communicator& comm, const sdk::AllToAll& call, concord_stream stream) {
  const DeviceGuard here(devices_, comm.device());
  if (complete_locally(comm, call, stream)) return;
  const uint64_t bytes = bytes_of(call.count, call.dtype);
  comm.enqueue("HcclAlltoAll", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclAlltoAll(call.send, bytes, abi::kHcclInt8, call.recv, bytes, abi::kHcclInt8, hccl, vendor(stream));
  });
}

void Communicators::copy_to_self(Communicator& comm, const sdk::AllToAllV& call, concord_stream stream) {
  if (call.send_counts[0] != call.recv_counts[0]) {
    sdk::invalid(sdk::text("the only rank sends itself %lld elements and receives %lld",
                           static_cast<long long>(call.send_counts[0]), static_cast<long long>(call.recv_counts[0])));
  }
  copy(comm, sdk::offset_address(call.send, call.send_offsets[0], call.dtype),
       mutable_pointer(sdk::offset_address(call.recv, call.recv_offsets[0], call.dtype)),
       sdk::element_bytes(call.send_counts[0], call.dtype), stream);
}

void Communicators::run(Communicator& comm, const sdk::AllToAllV& call, concord_stream stream) {
  const DeviceGuard here(devices_, comm.device());
  if (comm.size() == 1) return copy_to_self(comm, call, stream);
  const auto in_bytes = [&](const int64_t* elements) {
    std::vector<uint64_t> bytes;
    for (int32_t r = 0; r < comm.size(); ++r) bytes.push_back(bytes_of(elements[r], call.dtype));
    return bytes;
  };
  const std::vector<uint64_t> send_bytes = in_bytes(call.send_counts), send_at = in_bytes(call.send_offsets);
  const std::vector<uint64_t> recv_bytes = in_bytes(call.recv_counts), recv_at = in_bytes(call.recv_offsets);
  const void* from = call.send != nullptr ? call.send : comm.word();  // HCCL rejects null, even for no elements
  const void* to = call.recv != nullptr ? call.recv : comm.word();
  comm.enqueue("HcclAlltoAllV", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclAlltoAllV(from, send_bytes.data(), send_at.data(), abi::kHcclInt8, to, recv_bytes.data(),
                               recv_at.data(), abi::kHcclInt8, hccl, vendor(stream));
  });
}

void Communicators::run(Communicator& comm, const sdk::BatchP2p& call, concord_stream stream) {
  const DeviceGuard here(devices_, comm.device());
  std::vector<abi::HcclSendRecvItem> others;
  std::vector<const concord_p2p_item*> to_self;
  std::vector<const concord_p2p_item*> from_self;
  for (const concord_p2p_item& item : call.items) {
    const bool sends = item.kind == CONCORD_P2P_SEND;
    if (item.peer == comm.rank()) {
      (sends ? to_self : from_self).push_back(&item);
    } else if (item.count > 0) {
      others.push_back({sends ? abi::kHcclSend : abi::kHcclRecv, item.buffer, bytes_of(item.count, item.dtype),
                        abi::kHcclInt8, static_cast<uint32_t>(item.peer)});
    }
  }
  for (size_t i = 0; i < to_self.size(); ++i) {
    const int64_t bytes = sdk::element_bytes(to_self[i]->count, to_self[i]->dtype);
    if (bytes != sdk::element_bytes(from_self[i]->count, from_self[i]->dtype)) {
      sdk::invalid(sdk::text("send %zu of a rank to itself and its receive differ in size", i));
    }
    copy(comm, to_self[i]->buffer, from_self[i]->buffer, bytes, stream);
  }
  if (others.empty()) return comm.check();
  comm.enqueue("HcclBatchSendRecv", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclBatchSendRecv(others.data(), static_cast<uint32_t>(others.size()), hccl, vendor(stream));
  });
}

// --------------------------------------------------------------------------------------------------- the other tables

template <class Visit>
void Communicators::for_each(Visit&& visit) {
  const std::lock_guard lock(mutex_);
  for (Communicator* communicator : live_) visit(*communicator);
}

void Communicators::report(concord_stream stream, const std::string& message) {
  for_each([&](Communicator& communicator) {
    std::string detail;
    if (!communicator.used(stream)) return;
    const concord_status status = communicator.error(&detail);
    if (status != CONCORD_STATUS_OK) sdk::fail(status, detail + "; " + message);
  });
}

void Communicators::forget(concord_stream stream) {
  for_each([&](Communicator& communicator) { communicator.forget(stream); });
}

void Communicators::note_graph(concord_stream stream) {
  for_each([&](Communicator& communicator) { communicator.note(stream); });
}

}  // namespace concord::ascend
