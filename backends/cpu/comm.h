// The comm table, on the engines of backends/shm (ranks are processes, or threads, of one host) and backends/net (ranks
// of several hosts).
//
// An operation is a task of its stream that blocks the stream's thread until it is done on this rank; on the null
// stream it blocks the caller. The engine wants one operation at a time, in the same order on all ranks. So each call
// takes a turn, and operations run in the order of the calls even when they were queued on different streams.
//
// The first failure of an operation of the ranks persists: the stream gets it, async_error returns it, and later calls
// fail with the same code and sentence.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "backends/cpu/handle_table.h"
#include "backends/cpu/parking.h"
#include "backends/shm/communicator.h"
#include "backends/shm/engine.h"
#include "platform/base/thread_safety.hpp"
#include "platform/sdk/communicators.hpp"

namespace concord::cpu {

class Devices;
class Streams;

// One rank of a communicator. Threads: operations one at a time; abort() and failure() from any thread at any time.
// Shared by its handle and by its queued operations.
class Comm : public std::enable_shared_from_this<Comm> {
 public:
  Comm(std::unique_ptr<shm::Engine> engine, int32_t device, std::chrono::milliseconds timeout)
      : engine_(std::move(engine)), device_(device), timeout_(timeout) {}

  int32_t rank() const { return engine_->rank(); }
  int32_t size() const { return engine_->size(); }
  int32_t device() const { return device_; }

  // Queues |work|(engine) in its turn on |stream|, a stream of this device.
  template <class Work>
  void submit(Streams& streams, concord_stream stream, Work&& work);

  // Runs |work|(engine) in its turn on the calling thread, and returns what it returns.
  template <class Work>
  auto run(Work&& work) {
    return run_turn(begin_turn(), work);
  }

  void abort();
  std::optional<sdk::Failure> failure() const;

  // Waits until all operations have ended, then leaves. Nothing but destruction may follow.
  void close();

 private:
  class Turn;

  template <class Work>
  auto run_turn(uint64_t turn, Work&& work);
  uint64_t begin_turn();
  void await_turn(uint64_t turn);
  sdk::Failure keep(sdk::Failure failure);  // returns the failure that was first

  std::unique_ptr<shm::Engine> engine_;
  const int32_t device_;
  const std::chrono::milliseconds timeout_;
  std::atomic<uint64_t> begun_{0};
  std::atomic<uint64_t> ended_{0};
  std::atomic<bool> failed_{false};
  Parking turns_;

  mutable std::mutex mutex_;  // guards all below
  std::optional<sdk::Failure> failure_ CONCORD_GUARDED_BY(mutex_);
};

class Communicators : public sdk::CommTable<Communicators> {
 public:
  static constexpr int64_t kUniqueIdBytes = shm::kUniqueIdBytes;

  // |several_hosts|: ids are for ranks of several hosts.
  Communicators(const Devices& devices, Streams& streams, bool several_hosts)
      : devices_(devices), streams_(streams), several_hosts_(several_hosts) {}

  void create_id(void* out_id);
  concord_comm join(int32_t device, int32_t world, int32_t rank, const void* id, const sdk::CommConfig& config);
  concord_comm split_off(Comm& parent, std::span<const int32_t> ranks, const sdk::CommConfig& config);
  void destroy(concord_comm comm) { comms_.remove(comm)->close(); }
  // abort and async_error keep the communicator alive, because they may run while another thread destroys it.
  void abort(concord_comm comm) { comms_.share(comm)->abort(); }
  concord_status async_error(concord_comm comm);

  Comm& find(concord_comm comm) const { return comms_.find(comm); }
  Comm& find(concord_comm comm, concord_stream stream) const;
  bool can_reduce(concord_dtype dtype, concord_reduce_op reduce) const;

  void run(Comm& comm, const sdk::AllReduce& call, concord_stream stream);
  void run(Comm& comm, const sdk::Reduce& call, concord_stream stream);
  void run(Comm& comm, const sdk::Broadcast& call, concord_stream stream);
  void run(Comm& comm, const sdk::AllGather& call, concord_stream stream);
  void run(Comm& comm, const sdk::ReduceScatter& call, concord_stream stream);
  void run(Comm& comm, const sdk::AllToAll& call, concord_stream stream);
  void run(Comm& comm, const sdk::AllToAllV& call, concord_stream stream);
  void run(Comm& comm, const sdk::Barrier& call, concord_stream stream);
  void run(Comm& comm, const sdk::BatchP2p& call, concord_stream stream);

 private:
  const Devices& devices_;
  Streams& streams_;
  const bool several_hosts_;
  HandleTable<concord_comm, Comm> comms_{0xdc, "communicator"};
};

}  // namespace concord::cpu
