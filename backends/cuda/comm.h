// The comm table over NCCL. What each operation becomes:
//   data movement   bytes, whatever the dtype: NCCL has no i16 and no bool
//   reductions      NCCL's own; bool as u8 with max for "or" and min for "and"; min and max of floats and all of i16 by
//                   way of another type (staging.hpp), in scratch memory of the stream's pool
//   all_to_all(_v), batch_p2p   grouped sends and receives; what has no elements is left out on both sides
//   barrier         an all_reduce of one word
// The first operation of a kind, and the first transfer between two ranks, wait on the host until the peers come to it
// too: NCCL connects then. Waits, failures and the end of a communicator: communicator.h.
// NCCL does not compare what the ranks pass; ranks that disagree get a TIMEOUT, or wrong data.
// Threads: any thread, one at a time per communicator; abort and async_error at any time.
#pragma once

#include <mutex>
#include <vector>

#include "backends/cuda/guard.h"
#include "backends/cuda/handles.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/nccl.h"
#include "platform/base/thread_safety.hpp"

namespace concord::cuda {

class Communicators {
 public:
  Communicators(Devices& devices, Memory& memory, const Nccl& nccl);

  int64_t unique_id_size();
  void unique_id_create(void* out_id, int64_t bytes);
  concord_comm init(int32_t device, int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                    const concord_comm_config* config);
  concord_comm split(concord_comm parent, const int32_t* ranks, int32_t count, const concord_comm_config* config);
  void destroy(concord_comm comm);
  void abort(concord_comm comm);
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

  // For the other tables. |stream| was synchronized: throws the failure of a communicator that was used on it.
  void report(concord_stream stream);
  // |stream| is about to be destroyed.
  void forget(concord_stream stream);
  // A graph, which may hold operations of any communicator, was queued on |stream|.
  void note_graph(concord_stream stream);

 private:
  class Group;

  concord_comm adopt(std::unique_ptr<Communicator> communicator);
  // The word that barriers on |device| reduce. One for all of them: what is in it does not matter.
  void* barrier_word(int32_t device);
  // What any collective is on a communicator of one rank. Not through NCCL, whose calls lose 176 bytes each there
  // (2.28).
  void copy_to_self(Communicator& communicator, const void* send, void* recv, int64_t count, concord_dtype dtype,
                    concord_stream stream);
  // Reduces by way of another type: |operate|(staged, its NCCL type) queues the reduction in place of |send_count|
  // codes; |kept| of them, from |first| on, are the result.
  template <class Operate>
  void reduce_staged(Communicator& communicator, const void* send, int64_t send_count, void* recv, int64_t first,
                     int64_t kept, concord_dtype dtype, concord_reduce_op reduce, concord_stream stream,
                     Operate&& operate);

  Devices& devices_;
  Memory& memory_;
  const Nccl& nccl_;
  Guard guard_;
  Handles<concord_comm> live_{"communicator"};
  std::mutex mutex_;  // guards barrier_words_
  std::vector<void*> barrier_words_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord::cuda
