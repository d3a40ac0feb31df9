// The comm table over NCCL. Operations are implemented as follows:
//   data movement   bytes, whatever the dtype: NCCL has no i16 and no bool
//   reductions      NCCL's own; bool as u8 with max for "or" and min for "and"; min and max of floats, and all
//                   reductions of i16, in another type (staging.hpp), in scratch memory of the stream's pool
//   all_to_all(_v), batch_p2p   grouped sends and receives; both sides omit transfers without elements
//   barrier         an all_reduce of one word
// The first operation of a kind, and the first transfer between two ranks, wait on the host until the peers call it
// too: NCCL connects then. communicator.h describes waits, failures and destruction.
// NCCL does not compare the ranks' arguments; ranks that disagree get a TIMEOUT or wrong data.
// Threads: any thread, one at a time per communicator; abort and async_error at any time.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include "backends/cuda/memory.h"
#include "backends/cuda/nccl/guard.h"
#include "backends/cuda/nccl/nccl.h"
#include "platform/base/thread_safety.hpp"
#include "platform/sdk/communicators.hpp"
#include "platform/sdk/handles.hpp"

namespace concord::cuda {

class Communicators : public sdk::CommTable<Communicators> {
 public:
  static constexpr int64_t kUniqueIdBytes = NCCL_UNIQUE_ID_BYTES;

  Communicators(Devices& devices, Memory& memory, const Nccl& nccl);

  void create_id(void* out_id);
  concord_comm join(int32_t device, int32_t world, int32_t rank, const void* id, const sdk::CommConfig& config);
  concord_comm split_off(Communicator& parent, std::span<const int32_t> ranks, const sdk::CommConfig& config);
  void destroy(concord_comm comm);
  Communicator& find(concord_comm comm, concord_stream stream = nullptr);
  bool can_reduce(concord_dtype dtype, concord_reduce_op reduce);

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
  // Call after |stream| was synchronized: throws the failure of a communicator that was used on it.
  void report(concord_stream stream);
  // Call before |stream| is destroyed.
  void forget(concord_stream stream);
  // Call after a graph, which may hold operations of any communicator, was queued on |stream|.
  void note_graph(concord_stream stream);

 private:
  class Group;

  concord_comm adopt(std::unique_ptr<Communicator> communicator);
  // Returns the word that barriers on |device| reduce. All of them share it, since its value does not matter.
  void* barrier_word(int32_t device);
  // Completes a collective of one rank, which is a copy, or of no elements; returns whether it did. Does not use NCCL,
  // whose calls leak 176 bytes each on one rank (2.28).
  bool complete_locally(Communicator& comm, const sdk::Transfer& call, concord_stream stream);
  // Queues a reduction, in another type if NCCL lacks it: |operate|(send, recv, type) queues NCCL's reduction of
  // |send_count| elements, in place if staged; |kept| of them, starting at |first|, are the result.
  template <class Operate>
  void queue_reduction(Communicator& comm, const sdk::Transfer& call, concord_reduce_op reduce, int64_t send_count,
                       int64_t first, int64_t kept, concord_stream stream, Operate&& operate);

  Devices& devices_;
  Memory& memory_;
  const Nccl& nccl_;
  Guard guard_;
  sdk::Handles<concord_comm> live_{"communicator"};
  std::mutex mutex_;  // guards barrier_words_
  std::vector<void*> barrier_words_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord::cuda
