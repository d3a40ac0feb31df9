// The implementation of a stream: a queue of tasks and the thread that runs them in order.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backends/cpu/parking.h"
#include "backends/cpu/task.h"
#include "platform/base/thread_safety.hpp"
#include "platform/sdk/failure.hpp"

namespace concord::cpu {

// The thread starts with the first task, so that an unused queue costs some hundred bytes. While tasks come it
// stays awake; idle, it sleeps. A task that throws leaves its failure here, and the next one runs.
//
// Progress is counted: a ticket is the number of tasks pushed so far, and is reached when that many are done. A task is
// done when it has returned and what it captured is destroyed.
//
// Threads: any. Shared by its handle, by its thread and by the events that were recorded on it.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // |name| and |device| make the thread's name.
  explicit Queue(int32_t device, const char* name = "concord-cpu") : device_(device), name_(name) {}

  int32_t device() const { return device_; }

  // Returns the ticket of |task|. Throws if the system gives no thread; nothing is queued then.
  uint64_t push(Task task);

  uint64_t pushed() const { return pushed_.load(); }
  bool reached(uint64_t ticket) const { return done_.load() >= ticket; }
  void wait(uint64_t ticket);
  // Waits until |ready|(), which is evaluated after every task and every wake(). Returns false after |deadline|.
  template <class Ready>
  bool wait_until(std::chrono::steady_clock::time_point deadline, Ready&& ready) {
    return progress_.wait_until(deadline, ready);
  }
  void wake() { progress_.notify_all(); }

  // The first failure of a task since it was last taken, if there is one.
  std::optional<sdk::Failure> take_failure();
  std::optional<sdk::Failure> failure() const;

  // No task may be pushed after it. What is queued runs to completion, for which this does not wait: a queue that is
  // idle is joined, a busy one continues on its own and frees itself. Call once.
  void close();

 private:
  void start();
  void run();
  bool take(std::vector<Task>& batch);
  void run_one(Task& task);

  const int32_t device_;
  const char* const name_;
  std::atomic<uint64_t> pushed_{0};
  std::atomic<uint64_t> done_{0};
  std::atomic<bool> closing_{false};
  Parking work_;      // the thread waits here for tasks
  Parking progress_;  // others wait here for tickets

  mutable std::mutex mutex_;  // guards all below
  std::vector<Task> waiting_ CONCORD_GUARDED_BY(mutex_);
  std::optional<sdk::Failure> failure_ CONCORD_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace concord::cpu
