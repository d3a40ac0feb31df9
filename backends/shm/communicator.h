// Collectives and point-to-point transfers between processes (or threads) of one host, through shared memory.
//
// Fast: a step between two spinning ranks takes well under a microsecond, large buffers go through
// staging slots small enough to stay in cache. Deterministic: a reduction processes the ranks in order, so every rank
// gets the same bits in every run, however a buffer is split. Bounded: bytes_per_rank() of shared memory per rank,
// reserved when the communicator is made. Nothing waits forever: a peer whose process exits is PEER_LOST well within a
// second, a silent one is TIMEOUT, and both have the same message on every rank.
//
// Arguments are those of platform/abi/comm.h; invalid ones are rejected before anything is sent. Failures are
// thrown as sdk::Failure. After a failure that concerns the ranks together (ranks that disagree, PEER_LOST, TIMEOUT,
// ABORTED) every later operation on that communicator fails with the same code and message, on every rank.
//
// Threads: operations one at a time; abort() and error() from any thread at any time.
// Waits: every operation blocks the calling thread until it is done on this rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/shm/call.h"
#include "backends/shm/engine.h"
#include "platform/abi/comm.h"

namespace concord::shm {

inline constexpr int64_t kUniqueIdBytes = 128;
inline constexpr int64_t kHostBytes = 8;  // at its end

// Writes a new id of kUniqueIdBytes: random bytes, and last the host of this process. One rank, whichever, creates it
// and passes it to all others.
void create_unique_id(void* out_id, int64_t bytes);

// Whether |operation| works with |dtype| and, where it reduces, |reduce|.
bool supports(concord_comm_op operation, concord_dtype dtype, concord_reduce_op reduce);

// Shared memory that one rank of a communicator of |world| ranks takes.
int64_t bytes_per_rank(int32_t world);

struct Meeting;

class Communicator final : public Engine {
 public:
  // Joins as |rank| of |world|. Waits: until all ranks have, or the timeout.
  static std::unique_ptr<Communicator> connect(int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                                               const Options& options = {});

  std::unique_ptr<Engine> split(std::span<const int32_t> ranks, const Options& options = {}) override;

  ~Communicator() override;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int32_t rank() const override;
  int32_t size() const override;
  const std::string& name() const override;

  void all_reduce(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op) override;
  void reduce(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op,
              int32_t root) override;
  void broadcast(const void* send, void* recv, int64_t count, concord_dtype dtype, int32_t root) override;
  void all_gather(const void* send, void* recv, int64_t count, concord_dtype dtype) override;
  void reduce_scatter(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op) override;
  void all_to_all(const void* send, void* recv, int64_t count, concord_dtype dtype) override;
  void all_to_all_v(const void* send, const int64_t* send_counts, const int64_t* send_offsets, void* recv,
                    const int64_t* recv_counts, const int64_t* recv_offsets, concord_dtype dtype) override;
  void barrier() override;
  void batch_p2p(std::span<const concord_p2p_item> items) override { batch_p2p(items, nullptr); }
  // |meanwhile|, unless null, is called repeatedly while nothing moves; it should wait briefly.
  void batch_p2p(std::span<const concord_p2p_item> items, const std::function<void()>& meanwhile);

  void abort() noexcept override;
  concord_status error(std::string* out_detail) const override;

  // For an engine whose operations are made of operations of this one.
  // Records a failure for all ranks, unless there is one already. Any thread at any time.
  void record(concord_status status, const std::string& detail) noexcept;
  // Throws the recorded failure, if there is one.
  void throw_if_failed() const;
  // Operations that begin from now on are steps of |call|: ranks compare it, and messages name it. Null: no longer. A
  // rank that sleeps in them calls |meanwhile| every few milliseconds.
  void act_for(const Call* call, std::function<void()> meanwhile = nullptr);
  // One round of such an operation: |fill| writes this rank's slot of slot_bytes(), all synchronize, and |read| gets
  // the slots of all ranks, in order. There is more than one rank.
  int64_t slot_bytes() const;
  void round(const std::function<void(std::byte*)>& fill,
             const std::function<void(std::span<const std::byte* const>)>& read);

 private:
  struct State;
  explicit Communicator(std::unique_ptr<State> state);
  static std::unique_ptr<Communicator> join(const Meeting& meeting, const std::vector<int32_t>& numbers);

  std::unique_ptr<State> state_;
};

}  // namespace concord::shm
