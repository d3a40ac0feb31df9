// A stream's inside: a queue of tasks and the thread that runs them in their order.
//
// The thread starts with the first task. Progress is counted: a ticket is the number of tasks pushed so far, and is
// reached when that many have run or were dropped. A task that throws Error leaves it here. Where the stream stops on
// failure, later tasks are dropped and every push and synchronization fails with the same error; else they run, and the
// first error is reported once, by the next synchronization.
//
// Threads: any. Shared by its stream, by its thread and by the events that were recorded on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backends/ascend/sim/runtime/error.h"
#include "backends/ascend/sim/runtime/faults.h"
#include "backends/ascend/sim/runtime/parking.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {

struct Task {
  const char* name = "";
  std::function<void()> run;   // more than once where it is captured
  std::function<void()> stop;  // may be empty; called by another thread to end run() early
  WorkFault fault;
};

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  explicit Queue(int32_t device) : device_(device) {}

  int32_t device() const { return device_; }

  // Returns the ticket of |task|. Throws the stream's failure if it has stopped on one.
  uint64_t push(Task task);

  uint64_t pushed() const { return pushed_.load(); }
  bool reached(uint64_t ticket) const { return done_.load() >= ticket; }

  // Waits until |ticket| is reached. Throws the abort's code if the stream is aborted meanwhile, |timeout_code|
  // after |timeout_ms| (-1: no limit), and then the failure of a task.
  void synchronize(uint64_t ticket, int32_t timeout_ms, abi::aclError timeout_code);

  // Waits for |ticket| on behalf of another queue's task: until it is reached or |given_up|; false after |deadline|.
  bool wait_for(uint64_t ticket, const std::atomic<bool>& given_up, Clock::time_point deadline);
  // Waits until all that was pushed so far has ended, whatever became of it.
  void drain();
  // Wakes those within wait_for, so that they look at |given_up|.
  void wake() { progress_.notify_all(); }

  void set_stop_on_failure(bool stop) { stop_on_failure_.store(stop); }

  // Drops what waits, tells the running task to stop, ends all synchronizations with |code|. New tasks run again.
  void abort(abi::aclError code);

  // No task may be pushed after it. What is queued runs to completion, for which this does not wait.
  void close();

 private:
  void start();
  void run();
  bool take(std::vector<Task>& batch);
  void run_one(Task& task);
  bool dropped(uint64_t aborts) const { return aborts != aborts_.load(); }
  void note_failure(uint64_t aborts, const Error& error);
  void throw_failure();
  void count_done(uint64_t tasks);

  const int32_t device_;
  std::atomic<uint64_t> pushed_{0};
  std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> aborts_{0};
  std::atomic<abi::aclError> abort_code_{0};  // of the last one
  std::atomic<bool> closing_{false};
  std::atomic<bool> stop_on_failure_{false};
  std::atomic<bool> failed_{false};  // whether failure_ is set
  Parking work_;                     // the thread waits here for tasks
  Parking progress_;                 // others wait here for tickets

  std::mutex mutex_;  // guards all below
  std::vector<Task> waiting_ CONCORD_GUARDED_BY(mutex_);
  uint64_t batch_aborts_ = 0;  // aborts_ when the running batch was taken; the thread's own
  std::function<void()> stop_running_ CONCORD_GUARDED_BY(mutex_);
  std::optional<Error> failure_ CONCORD_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace concord::ascend::sim
