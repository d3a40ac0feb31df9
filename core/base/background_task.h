// Runs one task at a time on another thread, and keeps its error for the thread that started it.
// Threads: is_running() and has_failed() any; everything else the thread that starts the tasks.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <thread>

namespace concord {

class BackgroundTask {
 public:
  BackgroundTask() = default;
  ~BackgroundTask() { join(); }
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // Runs |task| on another thread. Waits: for the task before it.
  void start(std::function<void()> task);
  // Never waits. Ask it before has_failed(): a task stops running after its failure is known.
  bool is_running() const { return running_.load(); }
  // Whether any task so far has thrown. Never waits.
  bool has_failed() const { return failed_.load(); }
  // Waits: for the task, if there is one.
  void join();
  // Throws what a task has thrown, if one has. After join().
  void rethrow() const;

 private:
  std::exception_ptr error_;  // written by thread_ before |failed_|, read after join()
  std::atomic<bool> failed_ = false;
  std::atomic<bool> running_ = false;
  std::thread thread_;
};

}  // namespace concord
