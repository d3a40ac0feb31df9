// A rank's NCCL communicator, extended by a timeout for every wait and by a failure that persists.
//
// Timeouts. NCCL queues kernels that wait for their peers on the device; if a peer is lost or never joins, they wait
// forever, and with them every stream and host thread that depends on them. So the guard (guard.h) calls tick() and
// watch() of each communicator a few times a second, each from its own thread. A tick
//   - asks NCCL for errors of its threads (a closed connection is a lost peer);
//   - records an event, a mark, after the operations queued since the last tick, and queries earlier marks. If for
//     timeout_ms after a mark was recorded neither it nor an earlier mark is reached, the device has made no progress
//     on this communicator's stream: a TIMEOUT.
// The queue of a stream is finite: after a stuck kernel it fills up, and then every thread that queues work blocks
// inside CUDA, also the one that records a mark. So timeouts are detected by watch(), which does not call CUDA and
// takes no lock that is held during such a call. A watch
//   - checks how long the oldest mark, or the recording of one, has been waiting;
//   - checks whether a host thread has been inside the same NCCL call for timeout_ms (the first use of a connection
//     waits for the peer on the host): a TIMEOUT as well.
// On a failure NCCL's communicator is aborted on a separate thread (aborting waits for kernels to exit), the kernels
// exit, the waiting streams continue, and the stream's next synchronize and every later call return the failure. The
// cost for an operation is two atomic counters and no event.
//
// Set-up has two steps. Timeouts during set-up need a communicator in NCCL's non-blocking mode, but in that mode every
// operation starts a thread (NCCL 2.24 and later). So the ranks join a non-blocking communicator, split the blocking
// one that is used from it, and destroy the first.
//
// Threads: operations one at a time; abort, error, tick and watch from any thread, also during an operation.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cuda/device.h"
#include "backends/cuda/nccl/nccl.h"
#include "platform/base/thread_safety.hpp"
#include "platform/sdk/checks.hpp"

namespace concord::cuda {

using Clock = std::chrono::steady_clock;

class Communicator {
 public:
  // Joins as |rank| of |world| on |device|. Waits: for all ranks, at most the config's timeout.
  static std::unique_ptr<Communicator> join(const Nccl& nccl, int32_t device, int32_t world, int32_t rank,
                                            const ncclUniqueId& id, const sdk::CommConfig& config);

  // Returns a communicator of |ranks|, a subset of this one's; null if |ranks| is empty, because this rank takes no
  // part. Every rank of this one calls it. Waits: for all of them.
  std::unique_ptr<Communicator> split(const int32_t* ranks, int32_t count, const sdk::CommConfig& config);

  // Waits: until the queued operations are done or have failed. Call before Guard::remove().
  void drain() noexcept;

  // Waits: briefly, for NCCL to release its communicator; if peers on the same machine delay that, it is released later
  // on another thread.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int32_t device() const { return device_; }
  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  Clock::duration timeout() const { return timeout_; }

  // Runs |body|(handle), which queues one operation on |stream|. Throws the failure if there is one.
  template <class Body>
  void enqueue(const char* call, concord_stream stream, Body&& body) {
    Inside inside(*this);
    finish(call, body(handle()));
    note(stream);
  }

  // Throws the failure if there is one. For operations that queue nothing.
  void check();

  void abort();
  // Returns the failure, OK if there is none; |out_detail| is its message. Checks NCCL first.
  concord_status error(std::string* out_detail);

  // Called by the guard's threads. They never throw. Waits: a tick may, inside CUDA; a watch never does.
  void tick(Clock::time_point now) noexcept;
  void watch(Clock::time_point now) noexcept;
  // Called when |stream| was synchronized: throws the failure, once per stream, if it was used on |stream|.
  void report(concord_stream stream);
  // Called before |stream| is destroyed.
  void forget(concord_stream stream);
  // Call after work that may hold operations of this communicator, for example a graph, was queued on |stream|.
  void note(concord_stream stream);

  // Returns the number of communicators of this process that have failed and still live. Cheap: a quick check that no
  // failure must be reported.
  static int32_t failures() { return failures_.load(std::memory_order_acquire); }

 private:
  // NCCL's communicator, with a count of the calls to it. Outlives the Communicator if NCCL takes long to release it.
  struct Link {
    Link(const Nccl& library, ncclComm_t comm) : nccl(library), handle(comm) {}
    const Nccl& nccl;
    ncclComm_t handle;
    ncclComm_t child = nullptr;      // NCCL writes the result of a split here, also after the caller's timeout
    std::atomic<uint64_t> calls{0};  // odd while a thread is inside an operation
    std::mutex mutex;
    std::condition_variable changed;
    bool ended CONCORD_GUARDED_BY(mutex) = false;
  };

  // Counts a thread as inside an operation while it lives.
  class Inside {
   public:
    explicit Inside(Communicator& communicator);
    ~Inside();

   private:
    Link& link_;
  };

  static constexpr Clock::time_point kNever{};
  struct Mark {
    cudaEvent_t event;
    Clock::time_point recorded;
  };

  Communicator(const Nccl& nccl, int32_t device, int32_t size, int32_t rank, ncclComm_t handle,
               const sdk::CommConfig& config);

  static ncclComm_t meet(const Nccl& nccl, int32_t world, int32_t rank, const ncclUniqueId& id,
                         const sdk::CommConfig& config);
  static void await(const std::shared_ptr<Link>& link, ncclResult_t result, const char* call,
                    Clock::time_point deadline, const std::string& who);
  static void end(const std::shared_ptr<Link>& link, bool in_order, Clock::duration grace);

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  ncclComm_t handle() const { return link_->handle; }
  void finish(const char* call, ncclResult_t result);
  [[noreturn]] void throw_failure();

  // The following need mutex_.
  void fail(concord_status status, std::string detail);
  void look_at_nccl(Clock::time_point now);
  // Whether a mark or a host call has waited for longer than the timeout less |slack|.
  bool overdue(Clock::time_point now, Clock::duration slack);

  // The following need marks_mutex_.
  void mark_what_is_queued(Clock::time_point now);
  cudaError_t record_mark(concord_stream stream, Clock::time_point now);
  void pass_marks(Clock::time_point now);

  static inline std::atomic<int32_t> failures_{0};

  const Nccl& nccl_;
  const int32_t device_;
  const int32_t size_;
  const int32_t rank_;
  const std::string who_;  // for messages: "communicator 'dp', rank 1 of 4"
  const Clock::duration timeout_;
  const std::shared_ptr<Link> link_;

  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> queued_{0};  // operations so far
  std::atomic<concord_stream> last_stream_;

  std::atomic<Clock::time_point> waiting_since_{kNever};  // the oldest mark, or the recording of one; kNever: no mark
  std::atomic<Clock::time_point> progress_{kNever};       // when a mark was last seen reached

  std::mutex mutex_;  // guards what follows; never held during a call to CUDA
  concord_status failure_ CONCORD_GUARDED_BY(mutex_) = CONCORD_STATUS_OK;
  std::string failure_detail_ CONCORD_GUARDED_BY(mutex_);
  std::vector<concord_stream> streams_ CONCORD_GUARDED_BY(mutex_);  // streams that have not reported the failure
  uint64_t seen_call_ CONCORD_GUARDED_BY(mutex_) = 0;               // the odd value of calls when it was first seen
  Clock::time_point seen_call_at_ CONCORD_GUARDED_BY(mutex_);

  std::mutex marks_mutex_;  // guards what follows; held during calls to CUDA, and never together with mutex_
  std::deque<Mark> marks_ CONCORD_GUARDED_BY(marks_mutex_);
  std::vector<cudaEvent_t> spare_events_ CONCORD_GUARDED_BY(marks_mutex_);
  uint64_t marked_ CONCORD_GUARDED_BY(marks_mutex_) = 0;  // value of queued_ at the last mark
};

}  // namespace concord::cuda
