// Large reductions between hosts: sums that travel from host to host in rank order.
//
// A reduction is split into steps, and a step into one slice for each rank of a host. A rank adds the values of its
// host's ranks in its slice to the sum received from the previous host, and sends the sum to the next one. The last
// host has the result, which returns the same way; then the ranks of a host exchange their slices. A host begins the
// next steps before the result of a step is back: in one round through shared memory its ranks exchange the values of a
// step and the results of an earlier one. Every message is sent before a rank waits for the ranks of its host, so no
// two hosts wait for each other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/net/hosts.h"
#include "backends/net/message_queue.h"
#include "backends/net/slice_sum.h"

namespace concord::net {

// A range of a reduction: where its values are, and where the result goes.
struct Piece {
  const std::byte* send = nullptr;
  std::byte* recv = nullptr;  // null: this rank does not need the result
  int64_t elements = 0;
  int32_t host = -1;  // the host that gets the result; -1: all hosts
};

// Runs one operation. All hosts must have the same number of ranks, and consecutive ones.
class Chain {
 public:
  // |scratch| is working memory, which grows as needed.
  Chain(int32_t rank, const HostMap& map, shm::Communicator& local, MessageQueue& queue, const SliceSum& sum,
        concord_dtype dtype, std::vector<std::byte>& scratch);

  void run(const std::vector<Piece>& pieces);

 private:
  using Slots = std::span<const std::byte* const>;  // one per rank of this host; empty if this rank is alone

  struct Step {
    Piece piece;
    int64_t part = 0;               // elements of a slice; the last ones may have fewer, or none
    Message* sum_before = nullptr;  // sum of the preceding hosts
    Message* result = nullptr;
    std::byte* slice = nullptr;  // the result of this rank's slice
  };

  void cut(const std::vector<Piece>& pieces);
  void divide_scratch();
  int64_t slice_elements(const Step& step, int32_t place) const;
  bool comes_by(const Step& step, int32_t host) const { return step.piece.host < 0 || host >= step.piece.host; }
  bool stays_at(const Step& step, int32_t host) const { return step.piece.host < 0 || host == step.piece.host; }
  std::byte* place_for_sum(size_t index);
  std::byte* place_for_slice(const Step& step, size_t index);

  void expect_sum(size_t index);
  void bring_back(const Step& step);
  void stage(const Step* begun, const Step* ended, std::byte* slot) const;
  void take_results(const Step& step, Slots slots) const;
  void pass_on(size_t index, Slots slots);
  const void* values_of(const Step& step, int32_t place, Slots slots);

  // Offsets in the slot of the rank at index |of|: the part for the rank at index |place|, which is not |of|, and the
  // result of |of|.
  int64_t part_offset(int32_t of, int32_t place) const { return (place < of ? place : place - 1) * stride_; }
  int64_t result_offset() const { return (local_ranks_ - 1) * stride_; }

  shm::Communicator& local_;
  MessageQueue& queue_;
  const SliceSum sum_;
  const concord_dtype dtype_;
  const int64_t element_;
  const int32_t host_;
  const int32_t place_;
  const int32_t local_ranks_;
  const bool first_;
  const bool last_;
  const size_t lag_;      // steps begun before the result of the first of them is back
  const int32_t before_;  // the rank with this rank's index on the previous host
  const int32_t after_;   // and on the next host
  int64_t most_ = 0;      // elements of the largest slice
  int64_t stride_ = 0;    // bytes from one part of a slot to the next
  std::vector<Step> steps_;
  std::vector<std::byte>& scratch_;
  // Parts of the scratch memory.
  std::byte* widened_ = nullptr;   // this host's values in the travelling type, if it is not dtype_
  std::byte* incoming_ = nullptr;  // two slices
  std::byte* sums_ = nullptr;
  std::byte* results_ = nullptr;  // lag_ + 1 slices
};

}  // namespace concord::net
