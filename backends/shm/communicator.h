// Collectives and point-to-point transfers between processes (or threads) of one host, through shared memory.
//
// Fast: a step between two spinning ranks takes well under a microsecond, large buffers go through
// staging slots small enough to stay in cache. Deterministic: a reduction processes the ranks in order, so every rank
// gets the same bits in every run, however a buffer is split. Bounded: bytes_per_rank() of shared memory per rank,
// reserved when the communicator is made. Nothing waits forever: a peer whose process ends is PEER_LOST well within a
// second, a silent one is TIMEOUT, and both have the same message on every rank.
//
// Arguments mean what platform/abi/comm.h says they mean; wrong ones are refused before anything is sent. Failures are
// thrown as sdk::Failure. After a failure that concerns the ranks together (ranks that disagree, PEER_LOST, TIMEOUT,
// ABORTED) every later operation on that communicator fails with the same code and message, on every rank.
//
// Threads: operations one at a time; abort() and error() from any thread at any time.
// Waits: every operation blocks the calling thread until it is done on this rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "platform/abi/comm.h"

namespace concord::shm {

inline constexpr int64_t kUniqueIdBytes = 128;
inline constexpr int64_t kHostBytes = 8;  // at its end

// Writes a new id of kUniqueIdBytes: random bytes, and last the host of this process. Any rank may make it; all have to
// be given it.
void create_unique_id(void* out_id, int64_t bytes);

struct Options {
  std::string name = "comm";  // for messages
  // How long a rank waits for its peers: in set-up, and within an operation each time that it cannot continue.
  std::chrono::milliseconds timeout{30 * 60 * 1000};
};

// Whether |operation| works with |dtype| and, where it reduces, |reduce|.
bool supports(concord_comm_op operation, concord_dtype dtype, concord_reduce_op reduce);

// Shared memory that one rank of a communicator of |world| ranks takes.
int64_t bytes_per_rank(int32_t world);

struct Meeting;

class Communicator {
 public:
  // Joins as |rank| of |world|. Waits: until all ranks have, or the timeout.
  static std::unique_ptr<Communicator> connect(int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                                               const Options& options = {});

  // Makes a communicator of this one's ranks |ranks|, in that order. Every rank calls it: members with the list of
  // their group (several disjoint groups may be created in the same call), the others with an empty one, which get
  // null.
  std::unique_ptr<Communicator> split(std::span<const int32_t> ranks, const Options& options = {});

  // Never waits; the peers may destroy theirs later or never.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int32_t rank() const;
  int32_t size() const;
  const std::string& name() const;

  void all_reduce(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op);
  void reduce(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op, int32_t root);
  void broadcast(const void* send, void* recv, int64_t count, concord_dtype dtype, int32_t root);
  void all_gather(const void* send, void* recv, int64_t count, concord_dtype dtype);
  void reduce_scatter(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op);
  void all_to_all(const void* send, void* recv, int64_t count, concord_dtype dtype);
  void all_to_all_v(const void* send, const int64_t* send_counts, const int64_t* send_offsets, void* recv,
                    const int64_t* recv_counts, const int64_t* recv_offsets, concord_dtype dtype);
  void barrier();

  // A send is done when its data has left the buffer, which may be before the peer receives it.
  void batch_p2p(std::span<const concord_p2p_item> items);

  // Ends running and later operations on every rank with ABORTED. Never waits.
  void abort() noexcept;

  // OK, or the first failure of this communicator on any of its ranks. |out_detail| may be null.
  concord_status error(std::string* out_detail) const;

 private:
  struct State;
  explicit Communicator(std::unique_ptr<State> state);
  static std::unique_ptr<Communicator> join(const Meeting& meeting);

  std::unique_ptr<State> state_;
};

}  // namespace concord::shm
