// Point-to-point transfers: one ring of bytes for every ordered pair of ranks.
//
// A message is a header (what it is) and its bytes, streamed through the ring in pieces. A batch loops over all its
// lanes and moves what can be moved, so no order of sends and receives can deadlock. Rings keep their positions across
// batches: the n-th send to a rank meets its n-th receive. Collectives use none of this. Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backends/shm/team.h"
#include "platform/abi/comm.h"

namespace concord::shm {

class Channels {
 public:
  explicit Channels(Team& team);

  // Runs a batch to completion. The items have been checked. |meanwhile|, unless null, is called repeatedly while
  // nothing moves; it should wait briefly.
  void run(std::span<const concord_p2p_item> items, const std::function<void()>& meanwhile);

 private:
  using Item = const concord_p2p_item*;

  // This rank's end of one direction with one peer, kept across batches.
  struct End {
    uint64_t position = 0;  // bytes that have passed
    int64_t messages = 0;
  };

  // The transfers of a batch in one direction with one peer, in order, and their progress.
  struct Lane {
    int32_t peer = 0;
    bool sends = false;
    size_t next = 0;  // within order_
    size_t end = 0;
    bool begun = false;  // the header of the next item has passed
    int64_t moved = 0;   // payload bytes of the next item that have passed

    bool done() const { return next == end; }
  };

  class News;

  void sort_into_lanes(std::span<const concord_p2p_item> items);
  void copy_to_self(std::span<const concord_p2p_item> items) const;
  bool advance(Lane& lane);
  void send_some(Lane& lane, uint64_t free);
  void receive_some(Lane& lane, uint64_t filled);
  // Bytes that can pass now: a multiple of 16, so that a header never is in two pieces.
  uint64_t space(const Lane& lane) const;
  // Counts |bytes| of the next item as moved and moves on to the following item if it is complete.
  void pass(Lane& lane, End& end, int64_t bytes);
  void check_header(const Lane& lane, const std::byte* header, int64_t number) const;

  Team& team_;
  const uint64_t capacity_;
  std::vector<End> outgoing_;
  std::vector<End> incoming_;
  std::vector<Item> order_;  // items of the running batch, by direction and peer
  std::vector<Lane> lanes_;
};

}  // namespace concord::shm
