#include "backends/cuda/fake/stream.h"

#include <thread>
#include <utility>

namespace fake {
std::shared_ptr<Stream> Stream::start() {
  auto stream = std::make_shared<Stream>();
  std::thread([stream] { stream->run(); }).detach();
  return stream;
}

void Stream::push(Work work) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return capturing_ || queue_.size() < size_t{kQueueLength}; });
  if (capturing_) {
    captured_.push_back(std::move(work));
    return;
  }
  queue_.push_back(std::move(work));
  changed_.notify_all();
}

void Stream::wait_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

bool Stream::idle() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !busy_;
}

void Stream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void Stream::begin_capture() {
  const std::lock_guard lock(mutex_);
  capturing_ = true;
  spoilt_ = false;
}

bool Stream::spoil_capture() {
  const std::lock_guard lock(mutex_);
  spoilt_ = capturing_;
  return capturing_;
}

bool Stream::end_capture(std::vector<Work>* out_work) {
  const std::lock_guard lock(mutex_);
  capturing_ = false;
  *out_work = std::exchange(captured_, {});
  return !spoilt_;
}

bool Stream::capturing() {
  const std::lock_guard lock(mutex_);
  return capturing_;
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !queue_.empty() || closed_; });
    if (queue_.empty()) return;
    const Work work = std::move(queue_.front());
    queue_.pop_front();
    changed_.notify_all();  // there is room again
    busy_ = true;
    lock.unlock();
    work();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace fake
