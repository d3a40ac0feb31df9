// The comm table: collectives and transfers between ranks. The contract of each method is in platform/abi/comm.h.
#pragma once

#include "platform/abi/comm.h"

namespace concord::null {

class Communicators {
 public:
  int64_t unique_id_size();
  void unique_id_create(void* out_id, int64_t bytes);
  concord_comm init(int32_t device, int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                    const concord_comm_config* config);
  void destroy(concord_comm comm);
  concord_status async_error(concord_comm comm);
  int32_t rank(concord_comm comm);
  int32_t size(concord_comm comm);
  int32_t supports(concord_comm_op operation, concord_dtype dtype, concord_reduce_op reduce);
  void all_reduce(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                  concord_reduce_op reduce, concord_stream stream);
  void reduce(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
              concord_reduce_op reduce, int32_t root, concord_stream stream);
  void broadcast(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype, int32_t root,
                 concord_stream stream);
  void all_gather(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                  concord_stream stream);
  void reduce_scatter(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                      concord_reduce_op reduce, concord_stream stream);
  void all_to_all(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                  concord_stream stream);
  void all_to_all_v(concord_comm comm, const void* send, const int64_t* send_counts, const int64_t* send_offsets,
                    void* recv, const int64_t* recv_counts, const int64_t* recv_offsets, concord_dtype dtype,
                    concord_stream stream);
  void barrier(concord_comm comm, concord_stream stream);
  void batch_p2p(concord_comm comm, const concord_p2p_item* items, int64_t count, concord_stream stream);
  // optional: split, abort
};

}  // namespace concord::null
