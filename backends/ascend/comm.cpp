#include "backends/ascend/comm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "backends/ascend/status.h"

namespace concord::ascend {
namespace {

Communicator& checked(concord_comm comm) {
  if (comm == nullptr) sdk::invalid("the communicator is null");
  return *reinterpret_cast<Communicator*>(comm);
}

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

int64_t Communicators::unique_id_size() { return abi::kHcclRootInfoBytes; }

void Communicators::unique_id_create(void* out_id, int64_t bytes) {
  sdk::check_unique_id(out_id, bytes, abi::kHcclRootInfoBytes);
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

concord_comm Communicators::init(int32_t device, int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                                 const concord_comm_config* config) {
  devices_.check(device);
  sdk::check_init(world, rank, id, id_bytes, abi::kHcclRootInfoBytes);
  abi::HcclRootInfo root;
  std::memcpy(&root, id, sizeof root);
  return adopt(Communicator::join(memory_, devices_, hccl_, device, world, rank, root, sdk::read_comm_config(config)));
}

concord_comm Communicators::split(concord_comm parent, const int32_t* ranks, int32_t count,
                                  const concord_comm_config* config) {
  return adopt(ascend::checked(parent).split(ranks, count, sdk::read_comm_config(config)));
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

concord_status Communicators::async_error(concord_comm comm) {
  std::string detail;
  const concord_status error = ascend::checked(comm).error(&detail);
  if (error != CONCORD_STATUS_OK) sdk::set_error_detail(detail.c_str());
  return error;
}

int32_t Communicators::rank(concord_comm comm) { return ascend::checked(comm).rank(); }

int32_t Communicators::size(concord_comm comm) { return ascend::checked(comm).size(); }

int32_t Communicators::supports(concord_comm_op operation, concord_dtype dtype, concord_reduce_op reduce) {
  sdk::check_comm_op(operation);
  if (operation == CONCORD_COMM_BARRIER) return 1;
  sdk::check_dtype(dtype);
  const bool reduces = operation == CONCORD_COMM_ALL_REDUCE || operation == CONCORD_COMM_REDUCE ||
                       operation == CONCORD_COMM_REDUCE_SCATTER;
  if (!reduces) return 1;
  sdk::check_reduce_op(reduce);
  return find_reduction(dtype, reduce).has_value() ? 1 : 0;
}

Communicator& Communicators::checked(concord_comm comm, concord_stream stream) {
  Communicator& communicator = ascend::checked(comm);
  if (stream == nullptr) devices_.device_of(stream);  // throws
  const auto device = devices_.streams.find(stream);
  if (device && *device != communicator.device()) {
    sdk::invalid(
        sdk::text("the stream belongs to device %d and the communicator to device %d", *device, communicator.device()));
  }
  return communicator;
}

void Communicators::copy(Communicator& communicator, const void* from, void* to, int64_t bytes, concord_stream stream) {
  communicator.check();
  if (from == to || bytes == 0) return;
  communicator.turn_to(stream);
  const auto size = static_cast<size_t>(bytes);
  const Acl& acl = devices_.acl();
  check_acl(acl, acl.aclrtMemcpyAsync(to, size, from, size, abi::kMemcpyDeviceToDevice, vendor(stream)),
            "aclrtMemcpyAsync (within a rank)");
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

void Communicators::divide(Communicator& communicator, void* data, int64_t count, concord_dtype dtype,
                           concord_stream stream) {
  averages_.divide(data, count, dtype, communicator.size(), stream,
                   [&](int64_t bytes) { return communicator.scratch(bytes, stream); });
}

void Communicators::all_reduce(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                               concord_reduce_op reduce, concord_stream stream) {
  Communicator& communicator = checked(comm, stream);
  sdk::check_all_reduce(send, recv, count, dtype, reduce);
  const Reduction how = reduction(dtype, reduce);
  const DeviceGuard here(devices_, communicator.device());
  if (communicator.size() == 1) return copy(communicator, send, recv, sdk::element_bytes(count, dtype), stream);
  if (count == 0) return communicator.check();
  communicator.enqueue("HcclAllReduce", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclAllReduce(mutable_pointer(send), recv, static_cast<uint64_t>(count), how.dtype, how.op, hccl,
                               vendor(stream));
  });
  if (how.divide) divide(communicator, recv, count, dtype, stream);
}

void Communicators::reduce(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                           concord_reduce_op reduce, int32_t root, concord_stream stream) {
  Communicator& communicator = checked(comm, stream);
  sdk::check_reduce(send, recv, count, dtype, reduce, root, communicator.rank(), communicator.size());
  const Reduction how = reduction(dtype, reduce);
  const DeviceGuard here(devices_, communicator.device());
  if (communicator.size() == 1) return copy(communicator, send, recv, sdk::element_bytes(count, dtype), stream);
  if (count == 0) return communicator.check();
  const bool is_root = communicator.rank() == root;
  void* result = is_root ? recv : communicator.scratch(sdk::element_bytes(count, dtype), stream);
  communicator.enqueue("HcclReduce", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclReduce(mutable_pointer(send), result, static_cast<uint64_t>(count), how.dtype, how.op,
                            static_cast<uint32_t>(root), hccl, vendor(stream));
  });
  if (how.divide && is_root) divide(communicator, recv, count, dtype, stream);
}

void Communicators::reduce_scatter(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                                   concord_reduce_op reduce, concord_stream stream) {
  Communicator& communicator = checked(comm, stream);
  sdk::check_reduce_scatter(send, recv, count, dtype, reduce, communicator.rank(), communicator.size());
  const Reduction how = reduction(dtype, reduce);
  const DeviceGuard here(devices_, communicator.device());
  if (communicator.size() == 1) return copy(communicator, send, recv, sdk::element_bytes(count, dtype), stream);
  if (count == 0) return communicator.check();
  communicator.enqueue("HcclReduceScatter", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclReduceScatter(mutable_pointer(send), recv, static_cast<uint64_t>(count), how.dtype, how.op, hccl,
                                   vendor(stream));
  });
  if (how.divide) divide(communicator, recv, count, dtype, stream);
}

void Communicators::barrier(concord_comm comm, concord_stream stream) {
  Communicator& communicator = checked(comm, stream);
  if (communicator.size() == 1) return communicator.check();
  const DeviceGuard here(devices_, communicator.device());
  communicator.enqueue("HcclAllReduce (barrier)", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclAllReduce(communicator.word(), communicator.word(), 1, abi::kHcclInt32, abi::kHcclMax, hccl,
                               vendor(stream));
  });
}

// ------------------------------------------------------------------------------------------------------ data movement

void Communicators::broadcast(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                              int32_t root, concord_stream stream) {
  Communicator& communicator = checked(comm, stream);
  sdk::check_broadcast(send, recv, count, dtype, root, communicator.rank(), communicator.size());
  const DeviceGuard here(devices_, communicator.device());
  if (communicator.rank() == root) copy(communicator, send, recv, sdk::element_bytes(count, dtype), stream);
  if (communicator.size() == 1 || count == 0) return communicator.check();
  communicator.enqueue("HcclBroadcast", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclBroadcast(recv, bytes_of(count, dtype), abi::kHcclInt8, static_cast<uint32_t>(root), hccl,
                               vendor(stream));
  });
}

void Communicators::all_gather(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                               concord_stream stream) {
  Communicator& communicator = checked(comm, stream);
  sdk::check_all_gather(send, recv, count, dtype, communicator.rank(), communicator.size());
  const DeviceGuard here(devices_, communicator.device());
  if (communicator.size() == 1) return copy(communicator, send, recv, sdk::element_bytes(count, dtype), stream);
  if (count == 0) return communicator.check();
  communicator.enqueue("HcclAllGather", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclAllGather(mutable_pointer(send), recv, bytes_of(count, dtype), abi::kHcclInt8, hccl,
                               vendor(stream));
  });
}

void Communicators::all_to_all(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                               concord_stream stream) {
  Communicator& communicator = checked(comm, stream);
  sdk::check_all_to_all(send, recv, count, dtype, communicator.size());
  const DeviceGuard here(devices_, communicator.device());
  if (communicator.size() == 1) return copy(communicator, send, recv, sdk::element_bytes(count, dtype), stream);
  if (count == 0) return communicator.check();
  const uint64_t bytes = bytes_of(count, dtype);
  communicator.enqueue("HcclAlltoAll", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclAlltoAll(send, bytes, abi::kHcclInt8, recv, bytes, abi::kHcclInt8, hccl, vendor(stream));
  });
}

void Communicators::all_to_all_v(concord_comm comm, const void* send, const int64_t* send_counts,
                                 const int64_t* send_offsets, void* recv, const int64_t* recv_counts,
                                 const int64_t* recv_offsets, concord_dtype dtype, concord_stream stream) {
  Communicator& communicator = checked(comm, stream);
  sdk::check_all_to_all_v(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, dtype, communicator.size());
  const DeviceGuard here(devices_, communicator.device());
  if (communicator.size() == 1) {
    if (send_counts[0] != recv_counts[0]) {
      sdk::invalid(sdk::text("the only rank sends itself %lld elements and receives %lld",
                             static_cast<long long>(send_counts[0]), static_cast<long long>(recv_counts[0])));
    }
    return copy(communicator, sdk::offset_address(send, send_offsets[0], dtype),
                mutable_pointer(sdk::offset_address(recv, recv_offsets[0], dtype)),
                sdk::element_bytes(send_counts[0], dtype), stream);
  }
  const auto in_bytes = [&](const int64_t* elements) {
    std::vector<uint64_t> bytes;
    for (int32_t r = 0; r < communicator.size(); ++r) bytes.push_back(bytes_of(elements[r], dtype));
    return bytes;
  };
  const std::vector<uint64_t> sizes = in_bytes(send_counts), places = in_bytes(send_offsets);
  const std::vector<uint64_t> sizes_in = in_bytes(recv_counts), places_in = in_bytes(recv_offsets);
  const void* from = send != nullptr ? send : communicator.word();  // HCCL takes no null, even of nothing
  const void* to = recv != nullptr ? recv : communicator.word();
  communicator.enqueue("HcclAlltoAllV", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclAlltoAllV(from, sizes.data(), places.data(), abi::kHcclInt8, to, sizes_in.data(), places_in.data(),
                               abi::kHcclInt8, hccl, vendor(stream));
  });
}

void Communicators::batch_p2p(concord_comm comm, const concord_p2p_item* items, int64_t count, concord_stream stream) {
  Communicator& communicator = checked(comm, stream);
  sdk::check_batch_p2p(items, count, communicator.rank(), communicator.size());
  const DeviceGuard here(devices_, communicator.device());
  std::vector<abi::HcclSendRecvItem> others;
  std::vector<const concord_p2p_item*> to_self;
  std::vector<const concord_p2p_item*> from_self;
  for (const concord_p2p_item* item = items; item != items + count; ++item) {
    const bool sends = item->kind == CONCORD_P2P_SEND;
    if (item->peer == communicator.rank()) {
      (sends ? to_self : from_self).push_back(item);
    } else if (item->count > 0) {
      others.push_back({sends ? abi::kHcclSend : abi::kHcclRecv, item->buffer, bytes_of(item->count, item->dtype),
                        abi::kHcclInt8, static_cast<uint32_t>(item->peer)});
    }
  }
  for (size_t i = 0; i < to_self.size(); ++i) {
    const int64_t bytes = sdk::element_bytes(to_self[i]->count, to_self[i]->dtype);
    if (bytes != sdk::element_bytes(from_self[i]->count, from_self[i]->dtype)) {
      sdk::invalid(sdk::text("send %zu of a rank to itself and its receive differ in size", i));
    }
    copy(communicator, to_self[i]->buffer, from_self[i]->buffer, bytes, stream);
  }
  if (others.empty()) return communicator.check();
  communicator.enqueue("HcclBatchSendRecv", stream, [&](abi::HcclComm hccl) {
    return hccl_.HcclBatchSendRecv(others.data(), static_cast<uint32_t>(others.size()), hccl, vendor(stream));
  });
}

// --------------------------------------------------------------------------------------------------- the other tables

template <class Visit>
void Communicators::for_each(Visit&& visit) {
  const std::lock_guard lock(mutex_);
  for (Communicator* communicator : live_) visit(*communicator);
}

void Communicators::report(concord_stream stream, const std::string& words) {
  for_each([&](Communicator& communicator) {
    std::string detail;
    if (!communicator.used(stream)) return;
    const concord_status status = communicator.error(&detail);
    if (status != CONCORD_STATUS_OK) sdk::fail(status, detail + "; " + words);
  });
}

void Communicators::forget(concord_stream stream) {
  for_each([&](Communicator& communicator) { communicator.forget(stream); });
}

void Communicators::note_graph(concord_stream stream) {
  for_each([&](Communicator& communicator) { communicator.note(stream); });
}

}  // namespace concord::ascend
