#include "core/base/background_task.h"

#include <utility>

namespace concord {

void BackgroundTask::start(std::function<void()> task) {
  join();
  running_ = true;
  thread_ = std::thread([this, task = std::move(task)] {
    try {
      task();
    } catch (...) {
      error_ = std::current_exception();
      failed_ = true;
    }
    running_ = false;
  });
}

void BackgroundTask::join() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundTask::rethrow() const {
  if (error_) std::rethrow_exception(error_);
}

}  // namespace concord
