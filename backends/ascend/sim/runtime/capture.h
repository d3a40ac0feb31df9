// Captured work: tasks that were submitted to one or more streams between a begin and an end, and can be replayed.
//
// Tasks are stored in the order of their submission, over all participating streams. That order respects every
// dependency (a task can only depend on earlier ones), so a replay runs them one after another. A stream joins by
// waiting for an event that was recorded in the capture; the origin must wait for all joined streams before the end.
// Vector clocks check that: for each stream, the number of tasks of each other stream that precede it.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/ascend/sim/runtime/queue.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {

class Stream;

class Capture : public std::enable_shared_from_this<Capture> {
 public:
  using ClockOfStreams = std::map<const Stream*, uint64_t>;

  // Begins a capture on |origin|. Throws if it is a default stream or already captured.
  static std::shared_ptr<Capture> begin(const std::shared_ptr<Stream>& origin, abi::aclmdlRICaptureMode mode);
  // Ends the capture that |origin| began; the result can be run. Throws 107029, 107036, 107038, 107025 or 507903.
  static std::shared_ptr<Capture> end(const std::shared_ptr<Stream>& origin);
  // Throws 107030 if a capture forbids |doing| to the calling thread, and invalidates that capture. A thread whose mode
  // is relaxed may do everything; one whose mode is thread-local is only bound by its own captures.
  static void require_allowed(const char* doing);
  // Sets the calling thread's mode, which is global at first, and returns the previous one.
  static abi::aclmdlRICaptureMode exchange_thread_mode(abi::aclmdlRICaptureMode mode);

  void add(const Stream& stream, Task task);
  // Returns the state that an event stores when it is recorded on |stream|.
  ClockOfStreams clock_of(const Stream& stream);
  // Makes |stream| wait for an event with |clock|: it joins if it is not in the capture yet.
  void join(const std::shared_ptr<Stream>& stream, const ClockOfStreams& clock);

  void spoil();
  abi::aclmdlRICaptureStatus status() const;

  // The handle, which exists while it is captured, too, and a number that is unique in the process.
  void set_handle(void* handle) { handle_ = handle; }
  void* handle() const { return handle_; }
  uint32_t id() const { return id_; }

  // Queues all tasks on |stream|, as one task. Throws if the capture has not ended.
  void run_on(Stream& stream);

 private:
  Capture(std::shared_ptr<Stream> origin, abi::aclmdlRICaptureMode mode)
      : origin_(std::move(origin)), mode_(mode), thread_(std::this_thread::get_id()), id_(++last_id_) {}
  void close(abi::aclError* out_code, std::string* out_why);

  std::shared_ptr<Stream> origin_;  // null after the end of the capture
  const abi::aclmdlRICaptureMode mode_;
  const std::thread::id thread_;
  static inline std::atomic<uint32_t> last_id_{0};
  const uint32_t id_;
  std::atomic<void*> handle_{nullptr};

  mutable std::mutex mutex_;  // guards all below
  bool ended_ CONCORD_GUARDED_BY(mutex_) = false;
  bool spoilt_ CONCORD_GUARDED_BY(mutex_) = false;
  std::vector<Task> tasks_ CONCORD_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Stream>> joined_ CONCORD_GUARDED_BY(mutex_);
  std::map<const Stream*, ClockOfStreams> clocks_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord::ascend::sim
