#include "backends/cuda/comm.h"

#include <cstring>

#include "backends/cuda/kernels.h"
#include "backends/cuda/staging.hpp"
#include "backends/cuda/status.h"

namespace concord::cuda {
namespace {

// For reductions of what is not staged.
ncclDataType_t nccl_dtype(concord_dtype dtype) {
  switch (dtype) {
    case CONCORD_DTYPE_F32: return ncclFloat32;
    case CONCORD_DTYPE_F64: return ncclFloat64;
    case CONCORD_DTYPE_BF16: return ncclBfloat16;
    case CONCORD_DTYPE_F16: return ncclFloat16;
    case CONCORD_DTYPE_I8: return ncclInt8;
    case CONCORD_DTYPE_I32: return ncclInt32;
    case CONCORD_DTYPE_I64: return ncclInt64;
    case CONCORD_DTYPE_U8:
    case CONCORD_DTYPE_BOOL: return ncclUint8;
    default: sdk::fail(CONCORD_STATUS_INTERNAL, sdk::text("NCCL has no type for %s", sdk::dtype_name(dtype)));
  }
}

ncclRedOp_t nccl_reduction(concord_dtype dtype, concord_reduce_op reduce) {
  const bool logical = dtype == CONCORD_DTYPE_BOOL;
  switch (reduce) {
    case CONCORD_REDUCE_SUM: return logical ? ncclMax : ncclSum;
    case CONCORD_REDUCE_PROD: return logical ? ncclMin : ncclProd;
    case CONCORD_REDUCE_MIN: return ncclMin;
    case CONCORD_REDUCE_MAX: return ncclMax;
    default: return ncclAvg;
  }
}

size_t bytes_of(int64_t count, concord_dtype dtype) { return static_cast<size_t>(sdk::element_bytes(count, dtype)); }

// The address |elements| after |base|; null stays null if there are none.
const void* at(const void* base, int64_t elements, concord_dtype dtype) {
  return sdk::offset_address(base, elements, dtype);
}
void* at(void* base, int64_t elements, concord_dtype dtype) {
  return const_cast<void*>(at(static_cast<const void*>(base), elements, dtype));
}

// Memory of the stream's pool for the length of a function; what is queued on the stream may still use it after.
class Scratch {
 public:
  Scratch(Memory& memory, int32_t device, int64_t bytes, concord_stream stream)
      : memory_(memory), device_(device), stream_(stream), data_(memory.allocate_on_stream(device, bytes, stream)) {}
  ~Scratch() {
    try {
      memory_.release_on_stream(device_, data_, stream_);
    } catch (const std::exception& error) {
      sdk::log(CONCORD_LOG_WARN, std::string("scratch memory of a reduction was not released: ") + error.what());
    }
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* data() const { return data_; }

 private:
  Memory& memory_;
  int32_t device_;
  concord_stream stream_;
  void* data_;
};

}  // namespace

// Sends and receives that NCCL takes as one operation. The group is closed whatever happens in it.
class Communicators::Group {
 public:
  Group(const Nccl& nccl, ncclComm_t comm, concord_stream stream)
      : nccl_(nccl), comm_(comm), stream_(vendor(stream)), result_(nccl.ncclGroupStart()) {}

  void send(const void* data, size_t bytes, int32_t peer) {
    if (result_ == ncclSuccess && bytes > 0) keep(nccl_.ncclSend(data, bytes, ncclInt8, peer, comm_, stream_));
  }
  void receive(void* data, size_t bytes, int32_t peer) {
    if (result_ == ncclSuccess && bytes > 0) keep(nccl_.ncclRecv(data, bytes, ncclInt8, peer, comm_, stream_));
  }
  // Returns the first failure, or the result of ending the group.
  ncclResult_t close() {
    const ncclResult_t ended = nccl_.ncclGroupEnd();
    return result_ != ncclSuccess ? result_ : ended;
  }

 private:
  void keep(ncclResult_t result) {
    if (result != ncclInProgress) result_ = result;
  }

  const Nccl& nccl_;
  ncclComm_t comm_;
  cudaStream_t stream_;
  ncclResult_t result_;
};

// ---------------------------------------------------------------------------------------------------- joining, ending

Communicators::Communicators(Devices& devices, Memory& memory, const Nccl& nccl)
    : devices_(devices), memory_(memory), nccl_(nccl), barrier_words_(static_cast<size_t>(devices.count()), nullptr) {}

void Communicators::create_id(void* out_id) {
  ncclUniqueId id;
  check_nccl(nccl_, nccl_.ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
  std::memcpy(out_id, &id, sizeof id);
}

concord_comm Communicators::adopt(std::unique_ptr<Communicator> communicator) {
  if (communicator == nullptr) return nullptr;
  barrier_word(communicator->device());  // now, because an allocation later could wait for a stuck device
  guard_.add(communicator.get());
  const auto handle = reinterpret_cast<concord_comm>(communicator.release());
  live_.add(handle);
  return handle;
}

concord_comm Communicators::join(int32_t device, int32_t world, int32_t rank, const void* id,
                                 const sdk::CommConfig& config) {
  devices_.check(device);
  ncclUniqueId nccl_id;
  std::memcpy(&nccl_id, id, sizeof nccl_id);
  return adopt(Communicator::join(nccl_, device, world, rank, nccl_id, config));
}

concord_comm Communicators::split_off(Communicator& parent, std::span<const int32_t> ranks,
                                      const sdk::CommConfig& config) {
  return adopt(parent.split(ranks.data(), static_cast<int32_t>(ranks.size()), config));
}

void Communicators::destroy(concord_comm comm) {
  live_.remove(comm);
  const std::unique_ptr<Communicator> communicator(&find(comm));
  communicator->drain();
  guard_.remove(communicator.get());
}

Communicator& Communicators::find(concord_comm comm, concord_stream) {
  if (comm == nullptr) sdk::invalid("the communicator is null");
  return *reinterpret_cast<Communicator*>(comm);
}

bool Communicators::can_reduce(concord_dtype dtype, concord_reduce_op reduce) {
  return dtype != CONCORD_DTYPE_BOOL || reduce != CONCORD_REDUCE_AVG;
}

void* Communicators::barrier_word(int32_t device) {
  const std::lock_guard lock(mutex_);
  void*& word = barrier_words_[static_cast<size_t>(device)];
  if (word == nullptr) word = memory_.allocate(device, sizeof(int32_t));
  return word;
}

bool Communicators::complete_locally(Communicator& comm, const sdk::Transfer& call, concord_stream stream) {
  if (comm.size() > 1 && call.count > 0) return false;
  comm.check();
  if (call.send == call.recv || call.count == 0) return true;
  const DeviceGuard here(comm.device());
  check_cuda(
      cudaMemcpyAsync(call.recv, call.send, bytes_of(call.count, call.dtype), cudaMemcpyDeviceToDevice, vendor(stream)),
      "cudaMemcpyAsync (one rank)");
  comm.note(stream);
  return true;
}

// --------------------------------------------------------------------------------------------------------- reductions

template <class Operate>
void Communicators::queue_reduction(Communicator& comm, const sdk::Transfer& call, concord_reduce_op reduce,
                                    int64_t send_count, int64_t first, int64_t kept, concord_stream stream,
                                    Operate&& operate) {
  if (!is_staged(call.dtype, reduce)) return operate(call.send, call.recv, nccl_dtype(call.dtype));
  comm.check();
  const DeviceGuard here(comm.device());
  const concord_dtype wide = staged_dtype(call.dtype);
  const Scratch codes(memory_, comm.device(), sdk::element_bytes(send_count, wide), stream);
  check_cuda(launch_encode(codes.data(), call.send, send_count, call.dtype, reduce, vendor(stream)),
             "cudaLaunchKernelEx (encode)");
  operate(codes.data(), at(codes.data(), first, wide), nccl_dtype(wide));
  if (kept == 0) return;
  check_cuda(launch_decode(call.recv, at(codes.data(), first, wide), kept, call.dtype, reduce, vendor(stream)),
             "cudaLaunchKernelEx (decode)");
}

void Communicators::run(Communicator& comm, const sdk::AllReduce& call, concord_stream stream) {
  if (complete_locally(comm, call, stream)) return;
  const ncclRedOp_t op = nccl_reduction(call.dtype, call.reduce);
  queue_reduction(comm, call, call.reduce, call.count, 0, call.count, stream,
                  [&](const void* send, void* recv, ncclDataType_t type) {
                    comm.enqueue("ncclAllReduce", stream, [&](ncclComm_t nccl) {
                      return nccl_.ncclAllReduce(send, recv, static_cast<size_t>(call.count), type, op, nccl,
                                                 vendor(stream));
                    });
                  });
}

void Communicators::run(Communicator& comm, const sdk::Reduce& call, concord_stream stream) {
  if (complete_locally(comm, call, stream)) return;
  const ncclRedOp_t op = nccl_reduction(call.dtype, call.reduce);
  queue_reduction(comm, call, call.reduce, call.count, 0, comm.rank() == call.root ? call.count : 0, stream,
                  [&](const void* send, void* recv, ncclDataType_t type) {
                    comm.enqueue("ncclReduce", stream, [&](ncclComm_t nccl) {
                      return nccl_.ncclReduce(send, recv, static_cast<size_t>(call.count), type, op, call.root, nccl,
                                              vendor(stream));
                    });
                  });
}

void Communicators::run(Communicator& comm, const sdk::ReduceScatter& call, concord_stream stream) {
  if (complete_locally(comm, call, stream)) return;
  const ncclRedOp_t op = nccl_reduction(call.dtype, call.reduce);
  queue_reduction(comm, call, call.reduce, comm.size() * call.count, comm.rank() * call.count, call.count, stream,
                  [&](const void* send, void* recv, ncclDataType_t type) {
                    comm.enqueue("ncclReduceScatter", stream, [&](ncclComm_t nccl) {
                      return nccl_.ncclReduceScatter(send, recv, static_cast<size_t>(call.count), type, op, nccl,
                                                     vendor(stream));
                    });
                  });
}

void Communicators::run(Communicator& comm, const sdk::Barrier&, concord_stream stream) {
  if (comm.size() == 1) return comm.check();
  void* word = barrier_word(comm.device());
  comm.enqueue("ncclAllReduce (barrier)", stream, [&](ncclComm_t nccl) {
    return nccl_.ncclAllReduce(word, word, 1, ncclInt32, ncclMax, nccl, vendor(stream));
  });
}

// ------------------------------------------------------------------------------------------------------ data movement

void Communicators::run(Communicator& comm, const sdk::Broadcast& call, concord_stream stream) {
  if (complete_locally(comm, call, stream)) return;
  comm.enqueue("ncclBroadcast", stream, [&](ncclComm_t nccl) {
    return nccl_.ncclBroadcast(call.send, call.recv, bytes_of(call.count, call.dtype), ncclInt8, call.root, nccl,
                               vendor(stream));
  });
}

void Communicators::run(Communicator& comm, const sdk::AllGather& call, concord_stream stream) {
  if (complete_locally(comm, call, stream)) return;
  comm.enqueue("ncclAllGather", stream, [&](ncclComm_t nccl) {
    return nccl_.ncclAllGather(call.send, call.recv, bytes_of(call.count, call.dtype), ncclInt8, nccl, vendor(stream));
  });
}

void Communicators::run(Communicator& comm, const sdk::AllToAll& call, concord_stream stream) {
  if (call.count == 0) return comm.check();
  comm.enqueue("ncclGroupEnd (all_to_all)", stream, [&](ncclComm_t nccl) {
    Group group(nccl_, nccl, stream);
    const size_t bytes = bytes_of(call.count, call.dtype);
    for (int32_t peer = 0; peer < comm.size(); ++peer) {
      group.send(at(call.send, peer * call.count, call.dtype), bytes, peer);
      group.receive(at(call.recv, peer * call.count, call.dtype), bytes, peer);
    }
    return group.close();
  });
}

void Communicators::run(Communicator& comm, const sdk::AllToAllV& call, concord_stream stream) {
  comm.enqueue("ncclGroupEnd (all_to_all_v)", stream, [&](ncclComm_t nccl) {
    Group group(nccl_, nccl, stream);
    for (int32_t peer = 0; peer < comm.size(); ++peer) {
      group.send(at(call.send, call.send_offsets[peer], call.dtype), bytes_of(call.send_counts[peer], call.dtype),
                 peer);
      group.receive(at(call.recv, call.recv_offsets[peer], call.dtype), bytes_of(call.recv_counts[peer], call.dtype),
                    peer);
    }
    return group.close();
  });
}

void Communicators::run(Communicator& comm, const sdk::BatchP2p& call, concord_stream stream) {
  comm.enqueue("ncclGroupEnd (batch_p2p)", stream, [&](ncclComm_t nccl) {
    Group group(nccl_, nccl, stream);
    for (const concord_p2p_item& item : call.items) {
      const size_t bytes = bytes_of(item.count, item.dtype);
      if (item.kind == CONCORD_P2P_SEND) group.send(item.buffer, bytes, item.peer);
      if (item.kind == CONCORD_P2P_RECV) group.receive(item.buffer, bytes, item.peer);
    }
    return group.close();
  });
}

// --------------------------------------------------------------------------------------------------- the other tables

void Communicators::report(concord_stream stream) {
  if (Communicator::failures() == 0) return;
  guard_.for_each([&](Communicator& communicator) { communicator.report(stream); });
}

void Communicators::forget(concord_stream stream) {
  guard_.for_each([&](Communicator& communicator) { communicator.forget(stream); });
}

void Communicators::note_graph(concord_stream stream) {
  guard_.for_each([&](Communicator& communicator) { communicator.note(stream); });
}

}  // namespace concord::cuda
