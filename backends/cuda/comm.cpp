#include "backends/cuda/comm.h"

#include <cstring>

#include "backends/cuda/kernels.h"
#include "backends/cuda/staging.hpp"
#include "backends/cuda/status.h"

namespace concord::cuda {
namespace {

Communicator& checked(concord_comm comm) {
  if (comm == nullptr) sdk::invalid("the communicator is null");
  return *reinterpret_cast<Communicator*>(comm);
}

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
  // The first failure, or what the end of the group says.
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

int64_t Communicators::unique_id_size() { return NCCL_UNIQUE_ID_BYTES; }

void Communicators::unique_id_create(void* out_id, int64_t bytes) {
  sdk::check_unique_id(out_id, bytes, NCCL_UNIQUE_ID_BYTES);
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

concord_comm Communicators::init(int32_t device, int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                                 const concord_comm_config* config) {
  devices_.check(device);
  sdk::check_init(world, rank, id, id_bytes, NCCL_UNIQUE_ID_BYTES);
  ncclUniqueId nccl_id;
  std::memcpy(&nccl_id, id, sizeof nccl_id);
  return adopt(Communicator::join(nccl_, device, world, rank, nccl_id, sdk::read_comm_config(config)));
}

concord_comm Communicators::split(concord_comm parent, const int32_t* ranks, int32_t count,
                                  const concord_comm_config* config) {
  return adopt(checked(parent).split(ranks, count, sdk::read_comm_config(config)));
}

void Communicators::destroy(concord_comm comm) {
  live_.remove(comm);
  const std::unique_ptr<Communicator> communicator(&checked(comm));
  communicator->drain();
  guard_.remove(communicator.get());
}

void Communicators::abort(concord_comm comm) { checked(comm).abort(); }

concord_status Communicators::async_error(concord_comm comm) {
  std::string detail;
  const concord_status error = checked(comm).error(&detail);
  if (error != CONCORD_STATUS_OK) sdk::set_error_detail(detail.c_str());
  return error;
}

int32_t Communicators::rank(concord_comm comm) { return checked(comm).rank(); }

int32_t Communicators::size(concord_comm comm) { return checked(comm).size(); }

int32_t Communicators::supports(concord_comm_op operation, concord_dtype dtype, concord_reduce_op reduce) {
  sdk::check_comm_op(operation);
  if (operation == CONCORD_COMM_BARRIER) return 1;
  sdk::check_dtype(dtype);
  const bool reduces = operation == CONCORD_COMM_ALL_REDUCE || operation == CONCORD_COMM_REDUCE ||
                       operation == CONCORD_COMM_REDUCE_SCATTER;
  if (!reduces) return 1;
  sdk::check_reduce_op(reduce);
  return dtype == CONCORD_DTYPE_BOOL && reduce == CONCORD_REDUCE_AVG ? 0 : 1;
}

void* Communicators::barrier_word(int32_t device) {
  const std::lock_guard lock(mutex_);
  void*& word = barrier_words_[static_cast<size_t>(device)];
  if (word == nullptr) word = memory_.allocate(device, sizeof(int32_t));
  return word;
}

void Communicators::copy_to_self(Communicator& communicator, const void* send, void* recv, int64_t count,
                                 concord_dtype dtype, concord_stream stream) {
  communicator.check();
  if (send == recv || count == 0) return;
  const DeviceGuard here(communicator.device());
  check_cuda(cudaMemcpyAsync(recv, send, bytes_of(count, dtype), cudaMemcpyDeviceToDevice, vendor(stream)),
             "cudaMemcpyAsync (one rank)");
  communicator.note(stream);
}

// --------------------------------------------------------------------------------------------------------- reductions

template <class Operate>
void Communicators::reduce_staged(Communicator& communicator, const void* send, int64_t send_count, void* recv,
                                  int64_t first, int64_t kept, concord_dtype dtype, concord_reduce_op reduce,
                                  concord_stream stream, Operate&& operate) {
  communicator.check();
  const DeviceGuard here(communicator.device());
  const concord_dtype wide = staged_dtype(dtype);
  const Scratch codes(memory_, communicator.device(), sdk::element_bytes(send_count, wide), stream);
  check_cuda(launch_encode(codes.data(), send, send_count, dtype, reduce, vendor(stream)),
             "cudaLaunchKernelEx (encode)");
  operate(codes.data(), nccl_dtype(wide));
  if (kept == 0) return;
  check_cuda(launch_decode(recv, at(codes.data(), first, wide), kept, dtype, reduce, vendor(stream)),
             "cudaLaunchKernelEx (decode)");
}

void Communicators::all_reduce(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                               concord_reduce_op reduce, concord_stream stream) {
  Communicator& communicator = checked(comm);
  sdk::check_all_reduce(send, recv, count, dtype, reduce);
  if (communicator.size() == 1) return copy_to_self(communicator, send, recv, count, dtype, stream);
  if (count == 0) return communicator.check();
  const ncclRedOp_t op = nccl_reduction(dtype, reduce);
  const auto run = [&](const void* from, void* to, ncclDataType_t type) {
    communicator.enqueue("ncclAllReduce", stream, [&](ncclComm_t nccl) {
      return nccl_.ncclAllReduce(from, to, static_cast<size_t>(count), type, op, nccl, vendor(stream));
    });
  };
  if (!is_staged(dtype, reduce)) return run(send, recv, nccl_dtype(dtype));
  reduce_staged(communicator, send, count, recv, 0, count, dtype, reduce, stream,
                [&](void* codes, ncclDataType_t type) { run(codes, codes, type); });
}

void Communicators::reduce(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                           concord_reduce_op reduce, int32_t root, concord_stream stream) {
  Communicator& communicator = checked(comm);
  sdk::check_reduce(send, recv, count, dtype, reduce, root, communicator.rank(), communicator.size());
  if (communicator.size() == 1) return copy_to_self(communicator, send, recv, count, dtype, stream);
  if (count == 0) return communicator.check();
  const ncclRedOp_t op = nccl_reduction(dtype, reduce);
  const auto run = [&](const void* from, void* to, ncclDataType_t type) {
    communicator.enqueue("ncclReduce", stream, [&](ncclComm_t nccl) {
      return nccl_.ncclReduce(from, to, static_cast<size_t>(count), type, op, root, nccl, vendor(stream));
    });
  };
  if (!is_staged(dtype, reduce)) return run(send, recv, nccl_dtype(dtype));
  reduce_staged(communicator, send, count, recv, 0, communicator.rank() == root ? count : 0, dtype, reduce, stream,
                [&](void* codes, ncclDataType_t type) { run(codes, codes, type); });
}

void Communicators::reduce_scatter(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                                   concord_reduce_op reduce, concord_stream stream) {
  Communicator& communicator = checked(comm);
  sdk::check_reduce_scatter(send, recv, count, dtype, reduce, communicator.rank(), communicator.size());
  if (communicator.size() == 1) return copy_to_self(communicator, send, recv, count, dtype, stream);
  if (count == 0) return communicator.check();
  const ncclRedOp_t op = nccl_reduction(dtype, reduce);
  const auto run = [&](const void* from, void* to, ncclDataType_t type) {
    communicator.enqueue("ncclReduceScatter", stream, [&](ncclComm_t nccl) {
      return nccl_.ncclReduceScatter(from, to, static_cast<size_t>(count), type, op, nccl, vendor(stream));
    });
  };
  if (!is_staged(dtype, reduce)) return run(send, recv, nccl_dtype(dtype));
  const int64_t first = communicator.rank() * count;
  reduce_staged(communicator, send, communicator.size() * count, recv, first, count, dtype, reduce, stream,
                [&](void* codes, ncclDataType_t type) { run(codes, at(codes, first, staged_dtype(dtype)), type); });
}

void Communicators::barrier(concord_comm comm, concord_stream stream) {
  Communicator& communicator = checked(comm);
  if (communicator.size() == 1) return communicator.check();
  void* word = barrier_word(communicator.device());
  communicator.enqueue("ncclAllReduce (barrier)", stream, [&](ncclComm_t nccl) {
    return nccl_.ncclAllReduce(word, word, 1, ncclInt32, ncclMax, nccl, vendor(stream));
  });
}

// ------------------------------------------------------------------------------------------------------ data movement

void Communicators::broadcast(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                              int32_t root, concord_stream stream) {
  Communicator& communicator = checked(comm);
  sdk::check_broadcast(send, recv, count, dtype, root, communicator.rank(), communicator.size());
  if (communicator.size() == 1) return copy_to_self(communicator, send, recv, count, dtype, stream);
  if (count == 0) return communicator.check();
  communicator.enqueue("ncclBroadcast", stream, [&](ncclComm_t nccl) {
    return nccl_.ncclBroadcast(send, recv, bytes_of(count, dtype), ncclInt8, root, nccl, vendor(stream));
  });
}

void Communicators::all_gather(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                               concord_stream stream) {
  Communicator& communicator = checked(comm);
  sdk::check_all_gather(send, recv, count, dtype, communicator.rank(), communicator.size());
  if (communicator.size() == 1) return copy_to_self(communicator, send, recv, count, dtype, stream);
  if (count == 0) return communicator.check();
  communicator.enqueue("ncclAllGather", stream, [&](ncclComm_t nccl) {
    return nccl_.ncclAllGather(send, recv, bytes_of(count, dtype), ncclInt8, nccl, vendor(stream));
  });
}

void Communicators::all_to_all(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                               concord_stream stream) {
  Communicator& communicator = checked(comm);
  sdk::check_all_to_all(send, recv, count, dtype, communicator.size());
  if (count == 0) return communicator.check();
  communicator.enqueue("ncclGroupEnd (all_to_all)", stream, [&](ncclComm_t nccl) {
    Group group(nccl_, nccl, stream);
    for (int32_t peer = 0; peer < communicator.size(); ++peer) {
      group.send(at(send, peer * count, dtype), bytes_of(count, dtype), peer);
      group.receive(at(recv, peer * count, dtype), bytes_of(count, dtype), peer);
    }
    return group.close();
  });
}

void Communicators::all_to_all_v(concord_comm comm, const void* send, const int64_t* send_counts,
                                 const int64_t* send_offsets, void* recv, const int64_t* recv_counts,
                                 const int64_t* recv_offsets, concord_dtype dtype, concord_stream stream) {
  Communicator& communicator = checked(comm);
  sdk::check_all_to_all_v(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, dtype, communicator.size());
  communicator.enqueue("ncclGroupEnd (all_to_all_v)", stream, [&](ncclComm_t nccl) {
    Group group(nccl_, nccl, stream);
    for (int32_t peer = 0; peer < communicator.size(); ++peer) {
      group.send(at(send, send_offsets[peer], dtype), bytes_of(send_counts[peer], dtype), peer);
      group.receive(at(recv, recv_offsets[peer], dtype), bytes_of(recv_counts[peer], dtype), peer);
    }
    return group.close();
  });
}

void Communicators::batch_p2p(concord_comm comm, const concord_p2p_item* items, int64_t count, concord_stream stream) {
  Communicator& communicator = checked(comm);
  sdk::check_batch_p2p(items, count, communicator.rank(), communicator.size());
  communicator.enqueue("ncclGroupEnd (batch_p2p)", stream, [&](ncclComm_t nccl) {
    Group group(nccl_, nccl, stream);
    for (int64_t i = 0; i < count; ++i) {
      const concord_p2p_item& item = items[i];
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
