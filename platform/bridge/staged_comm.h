// A communicator between ranks on different platforms: the host platform's communicator, with copies between the device
// and host memory around it.
//
// An operation is a row of chunks on a queue of the host platform, each of three steps: a host function that waits for
// the chunk's data, the host communicator's call on staging buffers, and a host function that starts to copy the result
// back. The copies run on two streams of the device: while the ranks exchange a chunk, the next one is copied down and
// the previous one up. Nothing on a stream of the device waits for another rank, because a vendor may run the host
// functions of all streams on one thread, where ranks that wait for each other in two groups would never finish.
//
// The host communicator compares the calls of the ranks, chunk by chunk. Before an operation of several chunks the
// ranks exchange its size, because their chunks can be equal although the sizes differ.
//
// Transfers and all_to_all_v are one chunk: their sizes differ between pairs of ranks, and a transfer that waited for a
// part of another could deadlock.
//
// A failed copy is the communicator's failure and aborts the host's, so that the other ranks get ABORTED. After a
// failure nothing is copied to the caller's buffers.
//
// Threads: operations one at a time, also from several queues; abort() and error() from any thread at any time.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/thread_safety.hpp"
#include "platform/bridge/chunk_plan.h"
#include "platform/cpp/comm.hpp"
#include "platform/cpp/event.hpp"
#include "platform/cpp/memory.hpp"

namespace concord::bridge {

// Pinned host memory that operations take and give back.
class StagingPool {
 public:
  explicit StagingPool(Platform platform) : platform_(platform) {}

  HostBuffer take(int64_t bytes);
  void give_back(HostBuffer buffer);

 private:
  const Platform platform_;
  std::mutex mutex_;
  std::vector<HostBuffer> spare_ CONCORD_GUARDED_BY(mutex_);
};

class StagedComm {
 public:
  // |comm| is of the host platform; tensors are on |device|.
  StagedComm(Device device, Communicator comm);

  int32_t rank() const { return comm_.rank(); }
  int32_t size() const { return comm_.size(); }
  const Communicator& host() const { return comm_; }

  // One chunk's call on the host communicator, with the staging buffers of the two sides.
  using HostCall = std::function<void(const Stream& queue, int64_t count, void* send, void* recv)>;

  // Queues an operation on |queue|, a stream of the host platform. The offsets of |chunks| are relative to |send| and
  // |recv|. Throws Error if the communicator has failed, or if the host's call is rejected.
  void submit(const Stream& queue, const void* send, void* recv, std::vector<Chunk> chunks, const HostCall& call);

  void abort() { comm_.abort(); }
  concord_status error(std::string* out_detail) const;
  // Waits: until all queued operations have ended. Only destruction may follow.
  void close() const { last_.synchronize(); }

 private:
  class Operation;

  void exchange_sizes(const Stream& queue, int64_t size);
  void fail(const Error& error);

  const Device device_;
  const Communicator comm_;
  StagingPool staging_;
  std::vector<int64_t> sizes_;  // elements of the newest operation on each rank; then this rank's again
  const Stream down_;
  const Stream up_;
  std::array<Event, 2> copied_down_;  // newest copy of a chunk with an even index, and with an odd one
  std::array<Event, 2> copied_up_;
  const Event last_;  // the end of the newest operation

  mutable std::mutex mutex_;
  std::optional<Error> failure_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord::bridge
