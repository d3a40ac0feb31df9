#include "platform/bridge/staged_table.h"

#include <chrono>

namespace concord::bridge {
namespace {

constexpr int64_t kAlignment = 64;  // bytes, for the buffers of a batch

DType dtype_of(concord_dtype dtype) { return static_cast<DType>(dtype); }
ReduceOp reduce_of(concord_reduce_op reduce) { return static_cast<ReduceOp>(reduce); }

CommOptions options_of(const sdk::CommConfig& config) {
  return {config.name, std::chrono::milliseconds(config.timeout_ms)};
}

// Appends a copy of |bytes| at |offset| of the caller's buffer; returns where it is in the staging buffer.
int64_t append(std::vector<Piece>& pieces, int64_t offset, int64_t bytes, int64_t alignment) {
  const int64_t staged = (staged_bytes(pieces) + alignment - 1) / alignment * alignment;
  if (bytes > 0) pieces.push_back({offset, staged, bytes});
  return staged;
}

// One side of an all_to_all_v: the parts without gaps, and their offsets in elements.
std::vector<int64_t> stage_parts(std::vector<Piece>& pieces, const int64_t* counts, const int64_t* offsets,
                                 int32_t ranks, int64_t element) {
  std::vector<int64_t> staged;
  for (int32_t r = 0; r < ranks; ++r)
    staged.push_back(append(pieces, offsets[r] * element, counts[r] * element, element) / element);
  return staged;
}

}  // namespace

int64_t StagedTable::unique_id_size() {
  return translated([&] {
    int64_t bytes = 0;
    host_.platform().call<&concord_comm_table::unique_id_size>(&bytes);
    return bytes;
  });
}

void StagedTable::unique_id_create(void* out_id, int64_t bytes) {
  translated([&] { host_.platform().call<&concord_comm_table::unique_id_create>(out_id, bytes); });
}

concord_comm StagedTable::init(int32_t device, int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                               const concord_comm_config* config) {
  sdk::check_device(device, 1);
  sdk::check_init(world, rank, id, id_bytes, unique_id_size());
  const auto* bytes = static_cast<const uint8_t*>(id);
  const CommOptions options = options_of(sdk::read_comm_config(config));
  return translated(
      [&] { return adopt(Communicator(host_, world, rank, UniqueId(bytes, bytes + id_bytes), options)); });
}

concord_comm StagedTable::split_off(StagedComm& parent, std::span<const int32_t> ranks, const sdk::CommConfig& config) {
  return translated([&]() -> concord_comm {
    std::optional<Communicator> part = parent.host().split(ranks, options_of(config));
    return part ? adopt(std::move(*part)) : nullptr;
  });
}

concord_comm StagedTable::adopt(Communicator comm) {
  auto staged = std::make_shared<StagedComm>(device_, std::move(comm));
  const auto handle = reinterpret_cast<concord_comm>(staged.get());
  live_.add(handle, std::move(staged));
  return handle;
}

void StagedTable::destroy(concord_comm comm) {
  const std::shared_ptr<StagedComm> removed = live_.remove(comm);
  translated([&] { removed->close(); });
}

StagedComm& StagedTable::find(concord_comm comm) const {
  const auto found = live_.find(comm);
  if (!found) sdk::invalid(sdk::text("%p is not a live communicator of the bridge", static_cast<const void*>(comm)));
  return **found;
}

bool StagedTable::can_reduce(concord_dtype dtype, concord_reduce_op reduce) const {
  return Communicator::supports(host_.platform(), CommOp::kAllReduce, dtype_of(dtype), reduce_of(reduce));
}

template <class Call>
void StagedTable::submit(StagedComm& comm, const sdk::Transfer& transfer, const Sides& sides, concord_stream stream,
                         Call call) {
  translated([&] {
    comm.submit(Stream::borrow(host_, stream), transfer.send, transfer.recv,
                plan_chunks(transfer.count, sdk::dtype_size(transfer.dtype), sides),
                [&](const Stream& queue, int64_t count, void* send, void* recv) {
                  call(comm.host(), queue, count, send, recv);
                });
  });
}

void StagedTable::run(StagedComm& comm, const sdk::AllReduce& call, concord_stream stream) {
  submit(comm, call, {}, stream,
         [&](const Communicator& host, const Stream& queue, int64_t count, void* send, void* recv) {
           host.all_reduce(queue, send, recv, count, dtype_of(call.dtype), reduce_of(call.reduce));
         });
}

void StagedTable::run(StagedComm& comm, const sdk::Reduce& call, concord_stream stream) {
  submit(comm, call, {.receives = comm.rank() == call.root}, stream,
         [&](const Communicator& host, const Stream& queue, int64_t count, void* send, void* recv) {
           host.reduce(queue, send, recv, count, dtype_of(call.dtype), reduce_of(call.reduce), call.root);
         });
}

void StagedTable::run(StagedComm& comm, const sdk::Broadcast& call, concord_stream stream) {
  submit(comm, call, {.sends = comm.rank() == call.root}, stream,
         [&](const Communicator& host, const Stream& queue, int64_t count, void* send, void* recv) {
           host.broadcast(queue, send, recv, count, dtype_of(call.dtype), call.root);
         });
}

void StagedTable::run(StagedComm& comm, const sdk::AllGather& call, concord_stream stream) {
  submit(comm, call, {.recv_parts = comm.size()}, stream,
         [&](const Communicator& host, const Stream& queue, int64_t count, void* send, void* recv) {
           host.all_gather(queue, send, recv, count, dtype_of(call.dtype));
         });
}

void StagedTable::run(StagedComm& comm, const sdk::ReduceScatter& call, concord_stream stream) {
  submit(comm, call, {.send_parts = comm.size()}, stream,
         [&](const Communicator& host, const Stream& queue, int64_t count, void* send, void* recv) {
           host.reduce_scatter(queue, send, recv, count, dtype_of(call.dtype), reduce_of(call.reduce));
         });
}

void StagedTable::run(StagedComm& comm, const sdk::AllToAll& call, concord_stream stream) {
  submit(comm, call, {.send_parts = comm.size(), .recv_parts = comm.size()}, stream,
         [&](const Communicator& host, const Stream& queue, int64_t count, void* send, void* recv) {
           host.all_to_all(queue, send, recv, count, dtype_of(call.dtype));
         });
}

void StagedTable::run(StagedComm& comm, const sdk::AllToAllV& call, concord_stream stream) {
  const int64_t element = sdk::dtype_size(call.dtype);
  Chunk chunk{};
  const std::vector<int64_t> sends = stage_parts(chunk.down, call.send_counts, call.send_offsets, comm.size(), element);
  const std::vector<int64_t> recvs = stage_parts(chunk.up, call.recv_counts, call.recv_offsets, comm.size(), element);
  translated([&] {
    comm.submit(Stream::borrow(host_, stream), call.send, call.recv, {std::move(chunk)},
                [&](const Stream& queue, int64_t, void* send, void* recv) {
                  comm.host().all_to_all_v(queue, send, call.send_counts, sends.data(), recv, call.recv_counts,
                                           recvs.data(), dtype_of(call.dtype));
                });
  });
}

void StagedTable::run(StagedComm& comm, const sdk::Barrier&, concord_stream stream) {
  translated([&] {
    comm.submit(Stream::borrow(host_, stream), nullptr, nullptr, {Chunk{}},
                [&](const Stream& queue, int64_t, void*, void*) { comm.host().barrier(queue); });
  });
}

void StagedTable::run(StagedComm& comm, const sdk::BatchP2p& call, concord_stream stream) {
  Chunk chunk{};
  std::vector<concord_p2p_item> items(call.items.begin(), call.items.end());
  std::vector<int64_t> staged;
  for (const concord_p2p_item& item : items) {
    staged.push_back(append(item.kind == CONCORD_P2P_SEND ? chunk.down : chunk.up,
                            static_cast<int64_t>(reinterpret_cast<uintptr_t>(item.buffer)),
                            item.count * sdk::dtype_size(item.dtype), kAlignment));
  }
  translated([&] {
    comm.submit(Stream::borrow(host_, stream), nullptr, nullptr, {std::move(chunk)},
                [&](const Stream& queue, int64_t, void* send, void* recv) {
                  for (size_t i = 0; i < items.size(); ++i)
                    items[i].buffer = static_cast<char*>(items[i].kind == CONCORD_P2P_SEND ? send : recv) + staged[i];
                  comm.host().batch_p2p(queue, items);
                });
  });
}

}  // namespace concord::bridge
