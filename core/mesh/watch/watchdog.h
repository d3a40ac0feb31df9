// A thread that checks at intervals: channels whose calls may have failed, ranks that ask where this one is.
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

// Runs its tasks one after another, each about every |period|, until it is destroyed. Tasks must not throw.
// Threads: any thread; a task must not add or remove tasks.
class Watchdog {
 public:
  Watchdog() = default;
  ~Watchdog() { stop(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Starts the thread at the first task.
  void add(const void* owner, std::chrono::milliseconds period, std::function<void()> task);
  // Afterwards no task of |owner| runs or will run. Waits: for one that runs now.
  void remove(const void* owner);
  // Waits: for the task that runs now. Nothing runs afterwards.
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

  std::mutex mutex_;    // the list
  std::mutex running_;  // held while a task runs, and by remove
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Task>> tasks_ CONCORD_GUARDED_BY(mutex_);
  bool stopping_ CONCORD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace concord
