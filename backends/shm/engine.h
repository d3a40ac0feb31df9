// The operations of a communicator, whatever connects its ranks. Arguments, failures and threads are as in
// communicator.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/abi/comm.h"

namespace concord::shm {

struct Options {
  std::string name = "comm";  // for messages
  // How long a rank waits for its peers: in set-up, and within an operation each time that it cannot continue.
  std::chrono::milliseconds timeout{30 * 60 * 1000};
  // Rank numbers for messages, if these are some of the ranks of a larger communicator; empty: 0, 1, 2, ...
  std::vector<int32_t> numbers = {};
};

class Engine {
 public:
  // Never waits; the peers may destroy theirs later or never.
  virtual ~Engine() = default;

  // Makes a communicator of this one's ranks |ranks|, in that order. Every rank calls it: members with the list of
  // their group (several disjoint groups may be created in the same call), the others with an empty one, which get
  // null.
  virtual std::unique_ptr<Engine> split(std::span<const int32_t> ranks, const Options& options = {}) = 0;

  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;
  virtual const std::string& name() const = 0;

  virtual void all_reduce(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op) = 0;
  virtual void reduce(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op,
                      int32_t root) = 0;
  virtual void broadcast(const void* send, void* recv, int64_t count, concord_dtype dtype, int32_t root) = 0;
  virtual void all_gather(const void* send, void* recv, int64_t count, concord_dtype dtype) = 0;
  virtual void reduce_scatter(const void* send, void* recv, int64_t count, concord_dtype dtype,
                              concord_reduce_op op) = 0;
  virtual void all_to_all(const void* send, void* recv, int64_t count, concord_dtype dtype) = 0;
  virtual void all_to_all_v(const void* send, const int64_t* send_counts, const int64_t* send_offsets, void* recv,
                            const int64_t* recv_counts, const int64_t* recv_offsets, concord_dtype dtype) = 0;
  virtual void barrier() = 0;
  // A send is done when its data has left the buffer, which may be before the peer receives it.
  virtual void batch_p2p(std::span<const concord_p2p_item> items) = 0;

  // Ends running and later operations on every rank with ABORTED. Never waits.
  virtual void abort() noexcept = 0;
  // OK, or the first failure of this communicator on any of its ranks. |out_detail| may be null.
  virtual concord_status error(std::string* out_detail) const = 0;
};

}  // namespace concord::shm
