#include "core/mesh/watch/watchdog.h"

#include <algorithm>

namespace concord {

void Watchdog::add(const void* owner, std::chrono::milliseconds period, std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::make_shared<Task>(Task{owner, period, std::move(task), Clock::now() + period}));
  if (!thread_.joinable() && !stopping_) thread_ = std::thread([this] { loop(); });
  changed_.notify_all();
}

void Watchdog::remove(const void* owner) {
  const std::lock_guard running(running_);
  const std::lock_guard lock(mutex_);
  std::erase_if(tasks_, [owner](const std::shared_ptr<Task>& task) { return task->owner == owner; });
}

void Watchdog::stop() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    thread.swap(thread_);
    changed_.notify_all();
  }
  if (thread.joinable()) thread.join();
}

void Watchdog::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto next =
        std::min_element(tasks_.begin(), tasks_.end(), [](const auto& a, const auto& b) { return a->due < b->due; });
    if (next == tasks_.end()) {
      changed_.wait(lock);
      continue;
    }
    const Clock::time_point due = (*next)->due;  // a copy, since the task may be removed during the wait
    if (Clock::now() < due) {
      changed_.wait_until(lock, due);
      continue;
    }
    const std::shared_ptr<Task> task = *next;
    task->due = Clock::now() + task->period;
    lock.unlock();
    {
      const std::lock_guard running(running_);
      lock.lock();  // the task may have been removed while the lock was released
      const bool still = std::find(tasks_.begin(), tasks_.end(), task) != tasks_.end() && !stopping_;
      lock.unlock();
      if (still) task->run();
    }
    lock.lock();
  }
}

}  // namespace concord
