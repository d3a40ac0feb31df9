// Runs one task at a time on a separate thread, and stores its error for the thread that started it.
// Threads: any for is_running() and has_failed(); otherwise only the thread that starts the tasks.
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

  // Runs |task| on a separate thread. Waits: for the previous task to finish.
  void start(std::function<void()> task);
  // Never waits. Call before has_failed(): a task stops running only after its failure is recorded.
  bool is_running() const { return running_.load(); }
  // Returns whether any task so far has thrown. Never waits.
  bool has_failed() const { return failed_.load(); }
  // Waits: until the task, if any, has finished.
  void join();
  // Rethrows the latest error of a task, if any has thrown. Call after join().
  void rethrow() const;

 private:
  std::exception_ptr error_;  // written by thread_ before |failed_|, read after join()
  std::atomic<bool> failed_ = false;
  std::atomic<bool> running_ = false;
  std::thread thread_;
};

}  // namespace concord
