// The comm table over HCCL. What each operation becomes:
//   data movement   bytes, whatever the dtype
//   reductions      HCCL's own, where it has them; bool as int8 with max for "or" and min for "and"; an average as a
//                   sum and a division (average.h); what HCCL lacks is declared unsupported
//   reduce          ranks that get no result pass scratch memory: HCCL takes no null there
//   broadcast       in place, as HCCL's is: the root first copies its data to where it is received
//   batch_p2p       HcclBatchSendRecv: HCCL's plain sends wait for their receives, and exchanges in opposite orders
//                   would deadlock. What a rank sends to itself, which HCCL refuses, is copied
//   barrier         an all_reduce of one word, because HcclBarrier may wait on the host
// A communicator of one rank copies. Streams, failures, split and the end: communicator.h.
// Threads: any thread, one at a time per communicator; async_error at any time.
#pragma once

#include <mutex>
#include <vector>

#include "backends/ascend/average.h"
#include "backends/ascend/communicator.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend {

// HCCL's timeouts are per process, and come from the environment, which it reads when it is first used: sets
// HCCL_CONNECT_TIMEOUT (set-up; within the 120 to 7200 s that HCCL takes) and HCCL_EXEC_TIMEOUT (an operation) to
// |seconds|, the setting comm.timeout. Values that are already set stay; null changes nothing. Threads: while no other
// reads the environment.
void pass_timeouts(const char* seconds);

class Communicators {
 public:
  // Also passes the setting comm.timeout on to HCCL.
  Communicators(Devices& devices, Memory& memory, const Hccl& hccl, const Averages& averages);

  int64_t unique_id_size();
  // On the thread's device, which has to be the one that this rank then joins on.
  void unique_id_create(void* out_id, int64_t bytes);
  concord_comm init(int32_t device, int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                    const concord_comm_config* config);
  concord_comm split(concord_comm parent, const int32_t* ranks, int32_t count, const concord_comm_config* config);
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

  // For the other tables. |stream| was synchronized and failed: throws the failure of a communicator that was used on
  // it, if HCCL says that one has failed; |words| are added to its message.
  void report(concord_stream stream, const std::string& words);
  // |stream| is about to be destroyed.
  void forget(concord_stream stream);
  // A graph, which may hold operations of any communicator, was queued on |stream|.
  void note_graph(concord_stream stream);

 private:
  // How HCCL does a reduction.
  struct Reduction {
    abi::HcclDataType dtype;
    abi::HcclReduceOp op;
    bool divide;
  };

  std::optional<Reduction> find_reduction(concord_dtype dtype, concord_reduce_op reduce) const;
  // UNIMPLEMENTED if HCCL has none.
  Reduction reduction(concord_dtype dtype, concord_reduce_op reduce) const;

  concord_comm adopt(std::unique_ptr<Communicator> communicator);
  // INVALID_ARGUMENT if |comm| is null, or |stream| is null or of another device.
  Communicator& checked(concord_comm comm, concord_stream stream);
  void copy(Communicator& communicator, const void* from, void* to, int64_t bytes, concord_stream stream);
  void divide(Communicator& communicator, void* data, int64_t count, concord_dtype dtype, concord_stream stream);
  template <class Visit>
  void for_each(Visit&& visit);

  Devices& devices_;
  Memory& memory_;
  const Hccl& hccl_;
  const Averages& averages_;
  const bool has_f64_;
  std::mutex mutex_;  // guards live_
  std::vector<Communicator*> live_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord::ascend
