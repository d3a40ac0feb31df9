// The collectives, and transfers between two ranks.
#include <numeric>
#include <vector>

#include "backends/ascend/sim/hccl/edge.h"
#include "backends/ascend/sim/hccl/hccl.h"
#include "backends/ascend/sim/hccl/rank.h"

using namespace concord::ascend::abi;
using namespace concord::ascend::sim;
namespace sdk = concord::sdk;
namespace shm = concord::shm;

namespace {

// ----------------------------------------------------------------------------------------------------- what is allowed

// Bytes of an element. Copies do not depend on values, so the engine is given bytes.
uint64_t element_bytes(HcclDataType type) {
  switch (type) {
    case kHcclInt8:
    case kHcclUint8: return 1;
    case kHcclInt16:
    case kHcclUint16:
    case kHcclFp16:
    case kHcclBfp16: return 2;
    case kHcclInt32:
    case kHcclUint32:
    case kHcclFp32: return 4;
    case kHcclInt64:
    case kHcclUint64:
    case kHcclFp64: return 8;
    case kHcclInt128: return 16;
  }
  refuse(kHcclPara, sdk::text("data type %u is unknown", static_cast<unsigned>(type)));
}

uint64_t bytes_of(uint64_t count, HcclDataType type) {
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(count, element_bytes(type), &bytes) || bytes > uint64_t{1} << 62) {
    refuse(kHcclPara, sdk::text("a count of %llu", static_cast<unsigned long long>(count)));
  }
  return bytes;
}

bool is_950() { return std::string(aclrtGetSocName()).rfind("Ascend950", 0) == 0; }

// The types that the hardware can reduce; 0 if it cannot.
concord_dtype reducible(HcclDataType type) {
  switch (type) {
    case kHcclInt8: return CONCORD_DTYPE_I8;
    case kHcclInt16: return CONCORD_DTYPE_I16;
    case kHcclInt32: return CONCORD_DTYPE_I32;
    case kHcclInt64: return CONCORD_DTYPE_I64;
    case kHcclFp16: return CONCORD_DTYPE_F16;
    case kHcclFp32: return CONCORD_DTYPE_F32;
    case kHcclBfp16: return CONCORD_DTYPE_BF16;
    case kHcclFp64: return is_950() ? CONCORD_DTYPE_F64 : 0;
    default: return 0;
  }
}

struct Reduction {
  concord_dtype dtype;
  concord_reduce_op op;
};

Reduction reduction(HcclDataType type, HcclReduceOp op) {
  element_bytes(type);
  if (op > kHcclMin) {
    refuse(kHcclPara,
           sdk::text("reduction %u is unknown; there are sum, prod, max and min (0 to 3)", static_cast<unsigned>(op)));
  }
  const concord_dtype dtype = reducible(type);
  if (dtype == 0 || (op == kHcclProd && (type == kHcclInt16 || type == kHcclBfp16))) {
    refuse(kHcclNotSupport, sdk::text("%s cannot reduce data type %u by reduction %u", aclrtGetSocName(),
                                      static_cast<unsigned>(type), static_cast<unsigned>(op)));
  }
  constexpr concord_reduce_op kOps[] = {CONCORD_REDUCE_SUM, CONCORD_REDUCE_PROD, CONCORD_REDUCE_MAX,
                                        CONCORD_REDUCE_MIN};
  return {dtype, kOps[op]};
}

void check_peer(const InUse& comm, uint32_t peer, const char* name) {
  if (peer < comm->size()) return;
  refuse(kHcclPara, sdk::text("%s is %u; the communicator has the ranks 0 to %u", name, peer, comm->size() - 1));
}

// A buffer of an operation: device memory, checked when the operation is queued and again when it runs.
class Buffer {
 public:
  Buffer(const void* address, uint64_t count, HcclDataType type, const char* name)
      : address_(const_cast<void*>(address)), bytes_(bytes_of(count, type)), name_(name) {
    if (bytes_ == 0) return;
    require(address, name);
    if (reinterpret_cast<uintptr_t>(address) % element_bytes(type) != 0) {
      refuse(kHcclPara, sdk::text("%s is %p, which is not aligned to its element", name, address));
    }
    if (concord_sim_check_device_memory(address_, bytes_, name_) != 0) refuse(kHcclPara, aclGetRecentErrMsg());
  }

  int64_t bytes() const { return static_cast<int64_t>(bytes_); }
  // The bytes themselves; on the stream's thread.
  std::byte* open() const {
    if (concord_sim_check_device_memory(address_, bytes_, name_) != 0) refuse(kHcclMemory, aclGetRecentErrMsg());
    return static_cast<std::byte*>(concord_sim_translate(address_));
  }

 private:
  void* address_;
  uint64_t bytes_;
  const char* name_;
};

constexpr concord_dtype kBytes = CONCORD_DTYPE_U8;

// The counts and offsets of one side of an uneven exchange, in bytes.
struct Layout {
  std::vector<int64_t> counts;
  std::vector<int64_t> offsets;
  uint64_t end = 0;  // elements up to the end of the last piece
};

Layout layout_of(const void* counts, const void* offsets, size_t ranks, HcclDataType type) {
  Layout layout;
  for (size_t i = 0; i < ranks; ++i) {
    const uint64_t count = static_cast<const uint64_t*>(counts)[i];
    const uint64_t offset = static_cast<const uint64_t*>(offsets)[i];
    layout.counts.push_back(static_cast<int64_t>(bytes_of(count, type)));
    layout.offsets.push_back(static_cast<int64_t>(bytes_of(offset, type)));
    if (count > 0) layout.end = std::max(layout.end, offset + count);
  }
  return layout;
}

void exchange(const char* name, const InUse& comm, const void* send, Layout sent, HcclDataType send_type,
              const void* recv, Layout received, HcclDataType recv_type, aclrtStream stream) {
  const Buffer from(send, sent.end, send_type, "sendBuf");
  const Buffer to(recv, received.end, recv_type, "recvBuf");
  comm->submit(name, stream, {from.bytes(), to.bytes()}, [=](shm::Engine& engine) {
    engine.all_to_all_v(from.open(), sent.counts.data(), sent.offsets.data(), to.open(), received.counts.data(),
                        received.offsets.data(), kBytes);
  });
}

void transfer(const char* name, const InUse& comm, std::vector<std::pair<concord_p2p_item, Buffer>> items,
              aclrtStream stream) {
  const std::shared_ptr<Rank> rank = comm.shared();
  Traffic traffic;
  for (const auto& [item, buffer] : items) {
    (item.kind == CONCORD_P2P_SEND ? traffic.read : traffic.written) += buffer.bytes();
  }
  comm->submit(name, stream, traffic, [rank, items = std::move(items)](shm::Engine&) {
    std::vector<concord_p2p_item> open;
    for (const auto& [item, buffer] : items) {
      open.push_back(item);
      open.back().buffer = buffer.open();
    }
    rank->transfer(open);
  });
}

std::pair<concord_p2p_item, Buffer> transfer_item(const InUse& comm, concord_p2p_kind kind, void* buffer,
                                                  uint64_t count, HcclDataType type, uint32_t peer) {
  check_peer(comm, peer, kind == CONCORD_P2P_SEND ? "destRank" : "srcRank");
  if (peer == comm->rank()) refuse(kHcclNotSupport, sdk::text("rank %u cannot send to or receive from itself", peer));
  const Buffer checked(buffer, count, type, "buf");
  return {{kind, static_cast<int32_t>(peer), nullptr, checked.bytes(), kBytes, 0}, checked};
}

}  // namespace

// --------------------------------------------------------------------------------------------------------- collectives

HcclResult HcclBarrier(HcclComm comm, aclrtStream stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    used->submit("HcclBarrier", stream, {}, [](shm::Engine& engine) { engine.barrier(); });
  });
}

HcclResult HcclAllReduce(void* send, void* recv, uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm comm,
                         aclrtStream stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    const Reduction how = reduction(type, op);
    const Buffer from(send, count, type, "sendBuf");
    const Buffer to(recv, count, type, "recvBuf");
    if (count == 0) return;
    used->submit("HcclAllReduce", stream, {from.bytes(), to.bytes()}, [=](shm::Engine& engine) {
      engine.all_reduce(from.open(), to.open(), static_cast<int64_t>(count), how.dtype, how.op);
    });
  });
}

HcclResult HcclReduce(void* send, void* recv, uint64_t count, HcclDataType type, HcclReduceOp op, uint32_t root,
                      HcclComm comm, aclrtStream stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    check_peer(used, root, "root");
    const Reduction how = reduction(type, op);
    const Buffer from(send, count, type, "sendBuf");
    const bool wanted = used->rank() == root;
    if (count > 0) require(recv, "recvBuf");  // on every rank, though only the root gets a result
    const Buffer to(recv, wanted ? count : 0, type, "recvBuf");
    if (count == 0) return;
    used->submit("HcclReduce", stream, {from.bytes(), to.bytes()}, [=](shm::Engine& engine) {
      engine.reduce(from.open(), wanted ? to.open() : nullptr, static_cast<int64_t>(count), how.dtype, how.op,
                    static_cast<int32_t>(root));
    });
  });
}

HcclResult HcclReduceScatter(void* send, void* recv, uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm comm,
                             aclrtStream stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    const Reduction how = reduction(type, op);
    bytes_of(count, type);
    const Buffer from(send, count * used->size(), type, "sendBuf");
    const Buffer to(recv, count, type, "recvBuf");
    if (count == 0) return;
    used->submit("HcclReduceScatter", stream, {from.bytes(), to.bytes()}, [=](shm::Engine& engine) {
      engine.reduce_scatter(from.open(), to.open(), static_cast<int64_t>(count), how.dtype, how.op);
    });
  });
}

HcclResult HcclBroadcast(void* buffer, uint64_t count, HcclDataType type, uint32_t root, HcclComm comm,
                         aclrtStream stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    check_peer(used, root, "root");
    const Buffer data(buffer, count, type, "buf");
    if (count == 0) return;
    const bool sends = used->rank() == root;
    const Traffic traffic{sends ? data.bytes() : 0, sends ? 0 : data.bytes()};
    used->submit("HcclBroadcast", stream, traffic, [=](shm::Engine& engine) {
      std::byte* const at = data.open();
      engine.broadcast(at, at, data.bytes(), kBytes, static_cast<int32_t>(root));
    });
  });
}

HcclResult HcclAllGather(void* send, void* recv, uint64_t count, HcclDataType type, HcclComm comm, aclrtStream stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    const Buffer from(send, count, type, "sendBuf");
    const Buffer to(recv, count * used->size(), type, "recvBuf");
    if (count == 0) return;
    used->submit("HcclAllGather", stream, {from.bytes(), to.bytes()},
                 [=](shm::Engine& engine) { engine.all_gather(from.open(), to.open(), from.bytes(), kBytes); });
  });
}

// One broadcast a rank: the pieces differ in size.
HcclResult HcclAllGatherV(void* send, uint64_t send_count, void* recv, const void* recv_counts,
                          const void* recv_offsets, HcclDataType type, HcclComm comm, void* stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    require(recv_counts, "recvCounts");
    require(recv_offsets, "recvDispls");
    const Layout layout = layout_of(recv_counts, recv_offsets, used->size(), type);
    const Buffer from(send, send_count, type, "sendBuf");
    const Buffer to(recv, layout.end, type, "recvBuf");
    const uint32_t own = used->rank();
    if (from.bytes() != layout.counts[own]) refuse(kHcclPara, "sendCount differs from this rank's own in recvCounts");
    used->submit("HcclAllGatherV", stream, {from.bytes(), to.bytes()}, [=](shm::Engine& engine) {
      for (uint32_t root = 0; root < layout.counts.size(); ++root) {
        std::byte* const piece = to.open() + layout.offsets[root];
        engine.broadcast(root == own ? from.open() : piece, piece, layout.counts[root], kBytes,
                         static_cast<int32_t>(root));
      }
    });
  });
}

HcclResult HcclReduceScatterV(void* send, const void* send_counts, const void* send_offsets, void* recv,
                              uint64_t recv_count, HcclDataType type, HcclReduceOp op, HcclComm comm, void* stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    require(send_counts, "sendCounts");
    require(send_offsets, "sendDispls");
    const Reduction how = reduction(type, op);
    const Layout layout = layout_of(send_counts, send_offsets, used->size(), type);
    const Buffer from(send, layout.end, type, "sendBuf");
    const Buffer to(recv, recv_count, type, "recvBuf");
    const uint32_t own = used->rank();
    if (to.bytes() != layout.counts[own]) refuse(kHcclPara, "recvCount differs from this rank's own in sendCounts");
    const auto element = static_cast<int64_t>(element_bytes(type));
    used->submit("HcclReduceScatterV", stream, {from.bytes(), to.bytes()}, [=](shm::Engine& engine) {
      for (uint32_t root = 0; root < layout.counts.size(); ++root) {
        engine.reduce(from.open() + layout.offsets[root], root == own ? to.open() : nullptr,
                      layout.counts[root] / element, how.dtype, how.op, static_cast<int32_t>(root));
      }
    });
  });
}

HcclResult HcclScatter(void* send, void* recv, uint64_t count, HcclDataType type, uint32_t root, HcclComm comm,
                       aclrtStream stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    check_peer(used, root, "root");
    const uint32_t ranks = used->size();
    const bool sends = used->rank() == root;
    const Buffer from(send, sends ? count * ranks : 0, type, "sendBuf");
    const Buffer to(recv, count, type, "recvBuf");
    if (count == 0) return;
    used->submit("HcclScatter", stream, {from.bytes(), to.bytes()}, [=](shm::Engine& engine) {
      std::vector<int64_t> nothing(ranks, 0);
      std::vector<int64_t> all(ranks, to.bytes());
      std::vector<int64_t> one(ranks, 0);
      one[root] = to.bytes();
      std::vector<int64_t> places(ranks);
      for (uint32_t i = 0; i < ranks; ++i) places[i] = to.bytes() * i;
      engine.all_to_all_v(sends ? from.open() : nullptr, sends ? all.data() : nothing.data(), places.data(), to.open(),
                          one.data(), nothing.data(), kBytes);
    });
  });
}

HcclResult HcclAlltoAll(const void* send, uint64_t send_count, HcclDataType send_type, const void* recv,
                        uint64_t recv_count, HcclDataType recv_type, HcclComm comm, aclrtStream stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    if (send_count != recv_count || send_type != recv_type) refuse(kHcclPara, "sent and received pieces differ");
    const Buffer from(send, send_count * used->size(), send_type, "sendBuf");
    const Buffer to(recv, recv_count * used->size(), recv_type, "recvBuf");
    if (send_count == 0) return;
    const int64_t piece = from.bytes() / used->size();
    used->submit("HcclAlltoAll", stream, {from.bytes(), to.bytes()},
                 [=](shm::Engine& engine) { engine.all_to_all(from.open(), to.open(), piece, kBytes); });
  });
}

HcclResult HcclAlltoAllV(const void* send, const void* send_counts, const void* send_offsets, HcclDataType send_type,
                         const void* recv, const void* recv_counts, const void* recv_offsets, HcclDataType recv_type,
                         HcclComm comm, aclrtStream stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    require(send_counts, "sendCounts");
    require(send_offsets, "sdispls");
    require(recv_counts, "recvCounts");
    require(recv_offsets, "rdispls");
    exchange("HcclAlltoAllV", used, send, layout_of(send_counts, send_offsets, used->size(), send_type), send_type,
             recv, layout_of(recv_counts, recv_offsets, used->size(), recv_type), recv_type, stream);
  });
}

// The matrix has in row i what rank i sends to each; the pieces lie one after another.
HcclResult HcclAlltoAllVC(const void* send, const void* matrix, HcclDataType send_type, const void* recv,
                          HcclDataType recv_type, HcclComm comm, void* stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    require(matrix, "sendCountMatrix");
    const auto* counts = static_cast<const uint64_t*>(matrix);
    const uint32_t ranks = used->size();
    std::vector<uint64_t> sent(counts + used->rank() * ranks, counts + (used->rank() + 1) * ranks);
    std::vector<uint64_t> received(ranks);
    for (uint32_t i = 0; i < ranks; ++i) received[i] = counts[i * ranks + used->rank()];
    std::vector<uint64_t> sent_at(ranks);
    std::vector<uint64_t> received_at(ranks);
    std::exclusive_scan(sent.begin(), sent.end(), sent_at.begin(), uint64_t{0});
    std::exclusive_scan(received.begin(), received.end(), received_at.begin(), uint64_t{0});
    exchange("HcclAlltoAllVC", used, send, layout_of(sent.data(), sent_at.data(), ranks, send_type), send_type, recv,
             layout_of(received.data(), received_at.data(), ranks, recv_type), recv_type, stream);
  });
}

// --------------------------------------------------------------------------------------------------- between two ranks

HcclResult HcclSend(void* buffer, uint64_t count, HcclDataType type, uint32_t peer, HcclComm comm, aclrtStream stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    auto item = transfer_item(used, CONCORD_P2P_SEND, buffer, count, type, peer);
    if (count > 0) transfer("HcclSend", used, {item}, stream);
  });
}

HcclResult HcclRecv(void* buffer, uint64_t count, HcclDataType type, uint32_t peer, HcclComm comm, aclrtStream stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    auto item = transfer_item(used, CONCORD_P2P_RECV, buffer, count, type, peer);
    if (count > 0) transfer("HcclRecv", used, {item}, stream);
  });
}

HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, HcclComm comm, aclrtStream stream) {
  return hccl_call(__func__, [&] {
    const InUse used(comm);
    require(stream, "stream");
    require(items, "sendRecvInfo");
    if (count == 0) refuse(kHcclPara, "a batch of 0 transfers");
    std::vector<std::pair<concord_p2p_item, Buffer>> batch;
    for (const HcclSendRecvItem* item = items; item != items + count; ++item) {
      if (item->sendRecvType > kHcclRecv) {
        refuse(kHcclPara, sdk::text("transfer type %u; there are 0 (send) and 1 (receive)",
                                    static_cast<unsigned>(item->sendRecvType)));
      }
      const concord_p2p_kind kind = item->sendRecvType == kHcclSend ? CONCORD_P2P_SEND : CONCORD_P2P_RECV;
      auto checked = transfer_item(used, kind, item->buf, item->count, item->dataType, item->remoteRank);
      if (item->count > 0) batch.push_back(checked);
    }
    if (!batch.empty()) transfer("HcclBatchSendRecv", used, std::move(batch), stream);
  });
}
