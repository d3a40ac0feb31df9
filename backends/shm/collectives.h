// The collective operations, all built from the same rounds.
//
// In a round every rank produces something in its own staging slot, all synchronize, and every rank consumes what it
// needs from the others' slots. Slots alternate, so one synchronization per round is enough: when all have synchronized
// in round k, all have consumed round k-1, and its slots may be filled again. In the first round of an operation the
// ranks compare their calls before any rank consumes anything. Threads: one at a time. Arguments have been checked, and
// there is more than one rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backends/shm/reduce.h"
#include "backends/shm/team.h"
#include "platform/abi/comm.h"

namespace concord::shm {

// Reductions of up to this size are done in one phase: one synchronization, but every rank reads everything that the
// others have.
inline constexpr int64_t kOnePhaseBytes = 16 << 10;

class Collectives {
 public:
  explicit Collectives(Team& team);

  void all_reduce(const Call& call, const void* send, void* recv);
  void reduce(const Call& call, const void* send, void* recv);
  void broadcast(const Call& call, const void* send, void* recv);
  void all_gather(const Call& call, const void* send, void* recv);
  void reduce_scatter(const Call& call, const void* send, void* recv);
  void all_to_all(const Call& call, const void* send, void* recv);
  void all_to_all_v(const Call& call, const void* send, const int64_t* send_counts, const int64_t* send_offsets,
                    void* recv, const int64_t* recv_counts, const int64_t* recv_offsets);
  void barrier(const Call& call);

  // One round whose contents are the caller's.
  using Fill = std::function<void(std::byte* own_slot)>;
  using Read = std::function<void(std::span<const std::byte* const> slots)>;
  void round(const Call& call, const Fill& fill, const Read& read);

 private:
  struct Pieces;

  template <class Produce, class Consume>
  void run(const Call& call, const int64_t& rounds, Produce&& produce, Consume&& consume);
  void compare_calls(const Call& call);

  // The slot that |rank| fills in the current round, and the one of the round before.
  std::byte* slot(int32_t rank) const;
  std::byte* previous_slot(int32_t rank) const;

  void reduce_to(const Call& call, bool wanted, const void* send, void* recv);
  void reduce_in_one_phase(const Call& call, bool wanted, const void* send, void* recv);
  void reduce_in_two_phases(const Call& call, bool wanted, const void* send, void* recv);
  void exchange(const Call& call, const void* send, const Pieces& sent, void* recv, const Pieces& received);
  void announce_counts(const Pieces& sent);
  int64_t compare_counts(const Pieces& received);

  Team& team_;
  const int32_t rank_;
  const int32_t world_;
  const int64_t slot_bytes_;
  uint64_t step_ = 0;      // rounds that this rank has produced
  uint64_t sequence_ = 0;  // operations
  std::vector<const void*> sources_;
};

}  // namespace concord::shm
