// The checks of the validate layer for communicators: what each operation touches.
#include "platform/layers/validate.h"
#include "platform/sdk/checks.hpp"

namespace concord::layers {
namespace {

Range send_range(const void* send, int64_t count, concord_dtype dtype) {
  return {send, sdk::element_bytes(count, dtype), "send"};
}

Range recv_range(const void* recv, int64_t count, concord_dtype dtype) {
  return {recv, sdk::element_bytes(count, dtype), "recv"};
}

}  // namespace

Validate::Work Validate::inspect(Slot<&concord_comm_table::unique_id_create>, void* out_id, int64_t bytes) {
  int64_t expected = 0;
  if (next_.comm.unique_id_size(next_.comm.self, &expected) == CONCORD_STATUS_OK) {
    sdk::check_unique_id(out_id, bytes, expected);
  }
  return {};
}

Validate::Work Validate::inspect(Slot<&concord_comm_table::init>, int32_t, int32_t world, int32_t rank, const void* id,
                                 int64_t id_bytes, const concord_comm_config* config, concord_comm*) {
  int64_t expected = 0;
  if (next_.comm.unique_id_size(next_.comm.self, &expected) == CONCORD_STATUS_OK) {
    sdk::check_init(world, rank, id, id_bytes, expected);
  }
  sdk::read_comm_config(config);
  return {};
}

Validate::Work Validate::inspect(Slot<&concord_comm_table::split>, concord_comm parent, const int32_t* ranks,
                                 int32_t count, const concord_comm_config* config, concord_comm*) {
  const CommInfo info = comm_info(parent);
  sdk::check_split(ranks, count, info.rank, info.size);
  sdk::read_comm_config(config);
  return {{}, false, nullptr, info.busy};
}

Validate::Work Validate::inspect(Slot<&concord_comm_table::supports>, concord_comm_op operation, concord_dtype,
                                 concord_reduce_op, int32_t*) {
  sdk::check_comm_op(operation);
  return {};
}

Validate::Work Validate::inspect(Slot<&concord_comm_table::all_reduce>, concord_comm comm, const void* send, void* recv,
                                 int64_t count, concord_dtype dtype, concord_reduce_op reduce, concord_stream stream) {
  sdk::check_all_reduce(send, recv, count, dtype, reduce);
  return comm_work(comm_info(comm), stream, {send_range(send, count, dtype), recv_range(recv, count, dtype)});
}

Validate::Work Validate::inspect(Slot<&concord_comm_table::reduce>, concord_comm comm, const void* send, void* recv,
                                 int64_t count, concord_dtype dtype, concord_reduce_op reduce, int32_t root,
                                 concord_stream stream) {
  const CommInfo info = comm_info(comm);
  sdk::check_reduce(send, recv, count, dtype, reduce, root, info.rank, info.size);
  std::vector<Range> ranges{send_range(send, count, dtype)};
  if (info.rank == root) ranges.push_back(recv_range(recv, count, dtype));
  return comm_work(info, stream, std::move(ranges));
}

Validate::Work Validate::inspect(Slot<&concord_comm_table::broadcast>, concord_comm comm, const void* send, void* recv,
                                 int64_t count, concord_dtype dtype, int32_t root, concord_stream stream) {
  const CommInfo info = comm_info(comm);
  sdk::check_broadcast(send, recv, count, dtype, root, info.rank, info.size);
  std::vector<Range> ranges{recv_range(recv, count, dtype)};
  if (info.rank == root) ranges.push_back(send_range(send, count, dtype));
  return comm_work(info, stream, std::move(ranges));
}

Validate::Work Validate::inspect(Slot<&concord_comm_table::all_gather>, concord_comm comm, const void* send, void* recv,
                                 int64_t count, concord_dtype dtype, concord_stream stream) {
  const CommInfo info = comm_info(comm);
  sdk::check_all_gather(send, recv, count, dtype, info.rank, info.size);
  return comm_work(info, stream, {send_range(send, count, dtype), recv_range(recv, count * info.size, dtype)});
}

Validate::Work Validate::inspect(Slot<&concord_comm_table::reduce_scatter>, concord_comm comm, const void* send,
                                 void* recv, int64_t count, concord_dtype dtype, concord_reduce_op reduce,
                                 concord_stream stream) {
  const CommInfo info = comm_info(comm);
  sdk::check_reduce_scatter(send, recv, count, dtype, reduce, info.rank, info.size);
  return comm_work(info, stream, {send_range(send, count * info.size, dtype), recv_range(recv, count, dtype)});
}

Validate::Work Validate::inspect(Slot<&concord_comm_table::all_to_all>, concord_comm comm, const void* send, void* recv,
                                 int64_t count, concord_dtype dtype, concord_stream stream) {
  const CommInfo info = comm_info(comm);
  sdk::check_all_to_all(send, recv, count, dtype, info.size);
  return comm_work(info, stream,
                   {send_range(send, count * info.size, dtype), recv_range(recv, count * info.size, dtype)});
}

Validate::Work Validate::inspect(Slot<&concord_comm_table::all_to_all_v>, concord_comm comm, const void* send,
                                 const int64_t* send_counts, const int64_t* send_offsets, void* recv,
                                 const int64_t* recv_counts, const int64_t* recv_offsets, concord_dtype dtype,
                                 concord_stream stream) {
  const CommInfo info = comm_info(comm);
  sdk::check_all_to_all_v(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, dtype, info.size);
  std::vector<Range> ranges;
  for (int32_t r = 0; r < info.size; ++r) {
    ranges.push_back(send_range(sdk::offset_address(send, send_offsets[r], dtype), send_counts[r], dtype));
    ranges.push_back(recv_range(sdk::offset_address(recv, recv_offsets[r], dtype), recv_counts[r], dtype));
  }
  return comm_work(info, stream, std::move(ranges));
}

Validate::Work Validate::inspect(Slot<&concord_comm_table::barrier>, concord_comm comm, concord_stream stream) {
  return comm_work(comm_info(comm), stream, {});
}

Validate::Work Validate::inspect(Slot<&concord_comm_table::batch_p2p>, concord_comm comm, const concord_p2p_item* items,
                                 int64_t count, concord_stream stream) {
  const CommInfo info = comm_info(comm);
  sdk::check_batch_p2p(items, count, info.rank, info.size);
  std::vector<Range> ranges;
  for (int64_t i = 0; i < count; ++i) {
    ranges.push_back({items[i].buffer, sdk::element_bytes(items[i].count, items[i].dtype), "a buffer of the batch"});
  }
  return comm_work(info, stream, std::move(ranges));
}

void Validate::leave(Slot<&concord_comm_table::init>, int32_t device, int32_t world, int32_t rank, const void*, int64_t,
                     const concord_comm_config*, concord_comm* out_comm) {
  const std::lock_guard lock(mutex_);
  comms_.begin(*out_comm, {device, rank, world});
}

void Validate::leave(Slot<&concord_comm_table::split>, concord_comm parent, const int32_t*, int32_t,
                     const concord_comm_config*, concord_comm* out_comm) {
  if (*out_comm == nullptr) return;
  CommInfo info{comm_info(parent).device, 0, 0};
  next_.comm.rank(next_.comm.self, *out_comm, &info.rank);
  next_.comm.size(next_.comm.self, *out_comm, &info.size);
  const std::lock_guard lock(mutex_);
  comms_.begin(*out_comm, std::move(info));
}

}  // namespace concord::layers
