// A rank's HCCL communicator.
//
// Properties of HCCL, and how this class handles them:
//   memory       every communicator takes 2 x HCCL_BUFFSIZE on the device (2 x 200 MB by default), so a communicator
//                of one rank does not use HCCL
//   set-up       communicators of one device must not be set up from two threads at the same time: one lock per device.
//                Two threads of a rank that set up two communicators must do so in the same order on every rank
//   split        HCCL creates sub-communicators only from the first communicator, with the ranks in ascending order. A
//                split of a split is created from the first one; for ranks in another order a new communicator is set
//                up, with a root info that its first rank sends to the others over the parent. Every rank of the parent
//                calls HCCL, even one that is not a member (kHcclNoSubComm)
//   streams      HCCL does not order operations of one communicator on different streams: when the stream changes, the
//                new one waits, by an event, for the communicator's operations on the previous one
//   the parent   HCCL's parent lives until the last communicator that was created from it is destroyed
//   failures     HcclGetCommAsyncError reports them. Every later call returns the first one
//   waiting      HCCL has no abort and no timeout per communicator. HCCL_CONNECT_TIMEOUT bounds set-up and
//                HCCL_EXEC_TIMEOUT an operation, for the whole process; pass_timeouts (comm.h) sets them
//
// Threads: operations one at a time; error from any thread at any time.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "backends/ascend/memory.h"
#include "platform/base/thread_safety.hpp"
#include "platform/sdk/checks.hpp"

namespace concord::ascend {

class Communicator {
 public:
  // Joins as |rank| of |world| on |device|. Waits: for all ranks, at most HCCL_CONNECT_TIMEOUT.
  static std::unique_ptr<Communicator> join(Memory& memory, Devices& devices, const Hccl& hccl, int32_t device,
                                            int32_t world, int32_t rank, const abi::HcclRootInfo& root,
                                            const sdk::CommConfig& config);

  // Returns a communicator of |ranks|, a subset of this one's; null if |ranks| is empty, because this rank takes no
  // part. Every rank of this one calls it. Waits: for the members, at most.
  std::unique_ptr<Communicator> split(const int32_t* ranks, int32_t count, const sdk::CommConfig& config);

  // Waits: until the queued operations are done or have failed.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int32_t device() const { return device_; }
  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }

  // Runs |body|(handle), which queues one operation on |stream|. Throws the failure if there is one. The calling
  // thread's device must be that of the communicator, which has several ranks.
  template <class Body>
  void enqueue(const char* call, concord_stream stream, Body&& body) {
    turn_to(stream);
    finish(call, body(link_->handle));
  }

  // Makes work that is queued on |stream| from now run after this communicator's work on other streams. Throws the
  // failure if there is one.
  void turn_to(concord_stream stream);

  // Throws the failure if there is one.
  void check();
  // Returns the failure, OK if there is none; |out_detail| is its message. Checks HCCL first.
  concord_status error(std::string* out_detail);

  // Call after work that may hold operations of this communicator was queued on |stream|.
  void note(concord_stream stream);
  // Whether the communicator was used on |stream|.
  bool used(concord_stream stream);
  // Called before |stream| is destroyed.
  void forget(concord_stream stream);

  // Returns at least |bytes| of device memory for work on |stream|. Later operations on it, which run after this one,
  // share the memory.
  void* scratch(int64_t bytes, concord_stream stream);
  // Returns a few bytes of device memory whose contents do not matter, for barriers and as a substitute for null.
  void* word() const { return word_; }

 private:
  // HCCL's communicator. Destroyed with the last Communicator that needs it: its own or one created from it.
  struct Link {
    Link(Devices& device_table, const Hccl& library, int32_t on, abi::HcclComm comm)
        : devices(device_table), hccl(library), device(on), handle(comm) {}
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    Devices& devices;
    const Hccl& hccl;
    const int32_t device;
    abi::HcclComm handle;
  };

  struct Scratch {
    void* data = nullptr;
    int64_t bytes = 0;
  };

  Communicator(Memory& memory, Devices& devices, const Hccl& hccl, int32_t device, int32_t size, int32_t rank,
               const sdk::CommConfig& config);

  bool is_captured(concord_stream stream) const;
  abi::HcclComm cut(std::vector<uint32_t> members, int32_t place, uint64_t id);
  void stay_out();
  abi::HcclRootInfo exchange_root(const int32_t* ranks, int32_t count);
  void finish(const char* call, abi::HcclResult result);
  [[noreturn]] void throw_failure();
  void look_at_hccl() CONCORD_REQUIRES(mutex_);
  void fail(concord_status status, std::string detail) CONCORD_REQUIRES(mutex_);

  Memory& memory_;
  Devices& devices_;
  const Hccl& hccl_;
  const int32_t device_;
  const int32_t size_;
  const int32_t rank_;
  const std::string who_;  // for messages: "communicator 'dp', rank 1 of 4"

  std::shared_ptr<Link> link_;         // null if there is one rank
  std::shared_ptr<Link> first_;        // the communicator that this one was created from, or link_
  std::vector<uint32_t> first_ranks_;  // the members' ranks in first_
  uint64_t id_ = 0;                    // unique among the communicators created from first_; equal on all members
  uint64_t splits_ = 0;                // calls of split so far

  void* word_ = nullptr;
  abi::aclrtEvent turn_ = nullptr;  // created on first use
  std::unordered_map<concord_stream, Scratch> scratch_;
  std::vector<void*> outgrown_;  // former scratch memory, which queued work may still use

  std::atomic<bool> failed_{false};
  std::atomic<concord_stream> last_stream_{nullptr};
  std::mutex mutex_;  // guards what follows
  concord_status failure_ CONCORD_GUARDED_BY(mutex_) = CONCORD_STATUS_OK;
  std::string failure_detail_ CONCORD_GUARDED_BY(mutex_);
  std::vector<concord_stream> streams_ CONCORD_GUARDED_BY(mutex_);  // streams that the communicator was used on
};

}  // namespace concord::ascend
