// The comm table of a backend, without what every backend repeats: looking up the communicator, checking arguments,
// reporting ranks and failures. Header-only.
//
// A backend derives its class from CommTable<its class> and has, besides destroy(concord_comm):
//   static constexpr int64_t kUniqueIdBytes
//   void create_id(void* out_id)                     kUniqueIdBytes bytes
//   concord_comm join(int32_t device, int32_t world, int32_t rank, const void* id, const CommConfig&)
//   Rank& find(concord_comm)                         its class for one rank of a communicator; throws for a bad handle
//   Rank& find(concord_comm, concord_stream)         also checks that the stream fits; for operations
//   bool can_reduce(concord_dtype, concord_reduce_op)
//   void run(Rank&, const AllReduce&, concord_stream), and one for each struct below: queues a checked operation
//   concord_comm split_off(Rank&, std::span<const int32_t> ranks, const CommConfig&)     optional
// Rank has rank(), size(), concord_status error(std::string* out_detail), and optionally abort().
#pragma once

#include <span>
#include <string>

#include "platform/sdk/comm_checks.hpp"

namespace concord::sdk {

// The arguments of an operation. A collective sends and receives |count| elements, or |count| per rank.
struct Transfer {
  const void* send;
  void* recv;
  int64_t count;
  concord_dtype dtype;
};
struct AllReduce : Transfer {
  concord_reduce_op reduce;
};
struct Reduce : Transfer {
  concord_reduce_op reduce;
  int32_t root;
};
struct ReduceScatter : Transfer {
  concord_reduce_op reduce;
};
struct Broadcast : Transfer {
  int32_t root;
};
struct AllGather : Transfer {};
struct AllToAll : Transfer {};
// The arrays have one entry per rank and belong to the caller: copy them to use them after run() has returned.
struct AllToAllV {
  const void* send;
  const int64_t *send_counts, *send_offsets;
  void* recv;
  const int64_t *recv_counts, *recv_offsets;
  concord_dtype dtype;
};
struct Barrier {};
struct BatchP2p {
  std::span<const concord_p2p_item> items;  // the caller's, like the arrays above
};

template <class Self>
class CommTable {
 public:
  int64_t unique_id_size() { return Self::kUniqueIdBytes; }

  void unique_id_create(void* out_id, int64_t bytes) {
    check_unique_id(out_id, bytes, Self::kUniqueIdBytes);
    self().create_id(out_id);
  }

  concord_comm init(int32_t device, int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                    const concord_comm_config* config) {
    check_init(world, rank, id, id_bytes, Self::kUniqueIdBytes);
    return self().join(device, world, rank, id, read_comm_config(config));
  }

  concord_comm split(concord_comm parent, const int32_t* ranks, int32_t count, const concord_comm_config* config)
    requires requires { &Self::split_off; }
  {
    auto& from = self().find(parent);
    check_split(ranks, count, from.rank(), from.size());
    return self().split_off(from, std::span(ranks, static_cast<size_t>(count)), read_comm_config(config));
  }

  void abort(concord_comm comm)
    requires requires(Self& table) { table.find(comm).abort(); }
  {
    self().find(comm).abort();
  }

  concord_status async_error(concord_comm comm) {
    std::string detail;
    const concord_status error = self().find(comm).error(&detail);
    if (error != CONCORD_STATUS_OK) set_error_detail(detail.c_str());
    return error;
  }

  int32_t rank(concord_comm comm) { return self().find(comm).rank(); }

  int32_t size(concord_comm comm) { return self().find(comm).size(); }

  int32_t supports(concord_comm_op operation, concord_dtype dtype, concord_reduce_op reduce) {
    check_comm_op(operation);
    if (operation == CONCORD_COMM_BARRIER) return 1;
    check_dtype(dtype);
    const bool reduces = operation == CONCORD_COMM_ALL_REDUCE || operation == CONCORD_COMM_REDUCE ||
                         operation == CONCORD_COMM_REDUCE_SCATTER;
    if (!reduces) return 1;
    check_reduce_op(reduce);
    return self().can_reduce(dtype, reduce) ? 1 : 0;
  }

  void all_reduce(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                  concord_reduce_op reduce, concord_stream stream) {
    auto& found = self().find(comm, stream);
    check_all_reduce(send, recv, count, dtype, reduce);
    self().run(found, AllReduce{{send, recv, count, dtype}, reduce}, stream);
  }

  void reduce(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
              concord_reduce_op reduce, int32_t root, concord_stream stream) {
    auto& found = self().find(comm, stream);
    check_reduce(send, recv, count, dtype, reduce, root, found.rank(), found.size());
    self().run(found, Reduce{{send, recv, count, dtype}, reduce, root}, stream);
  }

  void broadcast(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype, int32_t root,
                 concord_stream stream) {
    auto& found = self().find(comm, stream);
    check_broadcast(send, recv, count, dtype, root, found.rank(), found.size());
    self().run(found, Broadcast{{send, recv, count, dtype}, root}, stream);
  }

  void all_gather(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                  concord_stream stream) {
    auto& found = self().find(comm, stream);
    check_all_gather(send, recv, count, dtype, found.rank(), found.size());
    self().run(found, AllGather{{send, recv, count, dtype}}, stream);
  }

  void reduce_scatter(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                      concord_reduce_op reduce, concord_stream stream) {
    auto& found = self().find(comm, stream);
    check_reduce_scatter(send, recv, count, dtype, reduce, found.rank(), found.size());
    self().run(found, ReduceScatter{{send, recv, count, dtype}, reduce}, stream);
  }

  void all_to_all(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                  concord_stream stream) {
    auto& found = self().find(comm, stream);
    check_all_to_all(send, recv, count, dtype, found.size());
    self().run(found, AllToAll{{send, recv, count, dtype}}, stream);
  }

  void all_to_all_v(concord_comm comm, const void* send, const int64_t* send_counts, const int64_t* send_offsets,
                    void* recv, const int64_t* recv_counts, const int64_t* recv_offsets, concord_dtype dtype,
                    concord_stream stream) {
    auto& found = self().find(comm, stream);
    check_all_to_all_v(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, dtype, found.size());
    self().run(found, AllToAllV{send, send_counts, send_offsets, recv, recv_counts, recv_offsets, dtype}, stream);
  }

  void barrier(concord_comm comm, concord_stream stream) { self().run(self().find(comm, stream), Barrier{}, stream); }

  void batch_p2p(concord_comm comm, const concord_p2p_item* items, int64_t count, concord_stream stream) {
    auto& found = self().find(comm, stream);
    check_batch_p2p(items, count, found.rank(), found.size());
    self().run(found, BatchP2p{std::span(items, static_cast<size_t>(count))}, stream);
  }

 private:
  Self& self() { return static_cast<Self&>(*this); }
};

}  // namespace concord::sdk
