// A thread that runs periodic checks: channels whose calls may have failed, position requests of other ranks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "platform/base/thread_safety.hpp"

namespace concord {

// Runs its tasks one after another, each about every |period|, until it is destroyed. Tasks must not throw. Threads:
// any thread; a task must not add or remove tasks.
class Watchdog {
 public:
  Watchdog() = default;
  ~Watchdog() { stop(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Starts the thread when the first task is added.
  void add(const void* owner, std::chrono::milliseconds period, std::function<void()> task);
  // Removes the tasks of |owner|; none of them runs afterwards. Waits: for the one that runs now.
  void remove(const void* owner);
  // Stops the thread. Waits: for the task that runs now.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Task {
    const void* owner;
    std::chrono::milliseconds period;
    std::function<void()> run;
    Clock::time_point due;
  };

  void loop();

  std::mutex mutex_;    // guards the list
  std::mutex running_;  // held while a task runs, and by remove()
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Task>> tasks_ CONCORD_GUARDED_BY(mutex_);
  bool stopping_ CONCORD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace concord
