// The queue of a simulated stream: backends/cpu's queue, with CANN's failure modes.
//
// A task that throws Error leaves it here. If the stream stops on failure, later tasks are dropped and every push and
// synchronization fails with the same error. Otherwise they run, and the next synchronization reports the first error,
// once. Progress is counted in tickets (backends/cpu/queue.h); dropped tasks count as done.
//
// Threads: any. Shared by its stream, by its tasks and by the events that were recorded on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "backends/ascend/sim/runtime/error.h"
#include "backends/ascend/sim/runtime/faults.h"
#include "backends/cpu/queue.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {

using Clock = std::chrono::steady_clock;

struct Task {
  const char* name = "";
  std::function<void()> run;   // called repeatedly if the task is captured
  std::function<void()> stop;  // makes run() return early; called by another thread; may be empty
  WorkFault fault;
};

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // |stream|: the number of its stream.
  Queue(int32_t device, int32_t stream) : stream_(stream), tasks_(std::make_shared<cpu::Queue>(device, "sim-npu")) {}

  // Returns the ticket of |task|. Throws the stream's failure if the stream has stopped on one.
  uint64_t push(Task task);

  uint64_t pushed() const { return tasks_->pushed(); }
  bool reached(uint64_t ticket) const { return tasks_->reached(ticket); }

  // Waits until |ticket| is reached. Throws the abort's code if the stream is aborted meanwhile, |timeout_code| after
  // |timeout_ms| (-1: no limit), or the failure of a task.
  void synchronize(uint64_t ticket, int32_t timeout_ms, abi::aclError timeout_code);

  // Called by a task of another queue. Waits until |ticket| is reached or |given_up|. Returns false after |deadline|.
  bool wait_for(uint64_t ticket, const std::atomic<bool>& given_up, Clock::time_point deadline);
  // Waits until all tasks pushed so far have ended, failed or been dropped.
  void drain() { tasks_->wait(pushed()); }
  // Wakes threads that are in wait_for, so that they check |given_up|.
  void wake() { tasks_->wake(); }

  void set_stop_on_failure(bool stop) { stop_on_failure_.store(stop); }

  // Drops the waiting tasks, stops the running task, and makes all synchronizations throw |code|. Tasks that are pushed
  // later run again.
  void abort(abi::aclError code);

  // No task may be pushed after this call. Queued tasks run to completion, for which it does not wait.
  void close() { tasks_->close(); }

 private:
  void run(Task& task, uint64_t aborts);
  bool dropped(uint64_t aborts) const { return aborts != aborts_.load(); }
  void note_failure(uint64_t aborts, const Error& error);
  void throw_failure();

  const int32_t stream_;
  const std::shared_ptr<cpu::Queue> tasks_;
  std::atomic<uint64_t> aborts_{0};
  std::atomic<abi::aclError> abort_code_{0};  // of the last abort
  std::atomic<bool> stop_on_failure_{false};
  std::atomic<bool> failed_{false};  // whether failure_ is set

  std::mutex mutex_;  // guards all below
  std::function<void()> stop_running_ CONCORD_GUARDED_BY(mutex_);
  std::optional<Error> failure_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord::ascend::sim
