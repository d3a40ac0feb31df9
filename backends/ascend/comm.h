// The comm table over HCCL. Operations are implemented as follows:
//   data movement   bytes, whatever the dtype
//   reductions      HCCL's own, if it has them; bool as int8 with max for "or" and min for "and"; an average as a
//                   sum and a division (average.h); other reductions are declared unsupported
//   reduce          ranks that get no result pass scratch memory, because HCCL rejects null
//   broadcast       in place, like HCCL's: the root first copies its data to the receive buffer
//   batch_p2p       HcclBatchSendRecv: HCCL's plain sends wait for their receives, and exchanges in opposite orders
//                   would deadlock. Sends of a rank to itself, which HCCL rejects, are copies
//   barrier         an all_reduce of one word, because HcclBarrier may wait on the host
// A communicator of one rank copies. communicator.h describes streams, failures, split and destruction.
// Threads: any thread, one at a time per communicator; async_error at any time.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include "backends/ascend/average.h"
#include "backends/ascend/communicator.h"
#include "platform/base/thread_safety.hpp"
#include "platform/sdk/communicators.hpp"

namespace concord::ascend {

// Sets HCCL's timeouts to |seconds|, the setting comm.timeout: the environment variables HCCL_CONNECT_TIMEOUT (set-up;
// within the 120 to 7200 s that HCCL accepts) and HCCL_EXEC_TIMEOUT (an operation), which HCCL reads at its first use
// and which hold for the process. Does not overwrite variables; null changes nothing. Threads: while no other thread
// reads the environment.
void pass_timeouts(const char* seconds);

class Communicators : public sdk::CommTable<Communicators> {
 public:
  static constexpr int64_t kUniqueIdBytes = abi::kHcclRootInfoBytes;

  // Also passes the setting comm.timeout on to HCCL.
  Communicators(Devices& devices, Memory& memory, const Hccl& hccl, const Averages& averages);

  // Uses the thread's device, which must be the device on which this rank then joins.
  void create_id(void* out_id);
  concord_comm join(int32_t device, int32_t world, int32_t rank, const void* id, const sdk::CommConfig& config);
  concord_comm split_off(Communicator& parent, std::span<const int32_t> ranks, const sdk::CommConfig& config);
  void destroy(concord_comm comm);
  Communicator& find(concord_comm comm);
  // Throws INVALID_ARGUMENT if |comm| is null, or if |stream| is null or belongs to a different device.
  Communicator& find(concord_comm comm, concord_stream stream);
  bool can_reduce(concord_dtype dtype, concord_reduce_op reduce) { return find_reduction(dtype, reduce).has_value(); }

  void run(Communicator& comm, const sdk::AllReduce& call, concord_stream stream);
  void run(Communicator& comm, const sdk::Reduce& call, concord_stream stream);
  void run(Communicator& comm, const sdk::ReduceScatter& call, concord_stream stream);
  void run(Communicator& comm, const sdk::Broadcast& call, concord_stream stream);
  void run(Communicator& comm, const sdk::AllGather& call, concord_stream stream);
  void run(Communicator& comm, const sdk::AllToAll& call, concord_stream stream);
  void run(Communicator& comm, const sdk::AllToAllV& call, concord_stream stream);
  void run(Communicator& comm, const sdk::Barrier& call, concord_stream stream);
  void run(Communicator& comm, const sdk::BatchP2p& call, concord_stream stream);

  // The next three are called by the other tables.
  // Call after synchronizing |stream| has failed: throws the failure of a communicator that was used on it, if HCCL
  // reports one; |message| is appended to the error.
  void report(concord_stream stream, const std::string& message);
  // Call before |stream| is destroyed.
  void forget(concord_stream stream);
  // Call after a graph, which may hold operations of any communicator, was queued on |stream|.
  void note_graph(concord_stream stream);

 private:
  // HCCL's form of a reduction.
  struct Reduction {
    abi::HcclDataType dtype;
    abi::HcclReduceOp op;
    bool divide;
  };

  std::optional<Reduction> find_reduction(concord_dtype dtype, concord_reduce_op reduce) const;
  // Throws UNIMPLEMENTED if HCCL lacks it.
  Reduction reduction(concord_dtype dtype, concord_reduce_op reduce) const;

  concord_comm adopt(std::unique_ptr<Communicator> communicator);
  // Completes a collective of one rank, which is a copy, or of no elements; returns whether it did.
  bool complete_locally(Communicator& comm, const sdk::Transfer& call, concord_stream stream);
  void copy(Communicator& comm, const void* from, void* to, int64_t bytes, concord_stream stream);
  void copy_to_self(Communicator& comm, const sdk::AllToAllV& call, concord_stream stream);
  void divide(Communicator& comm, void* data, int64_t count, concord_dtype dtype, concord_stream stream);
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
