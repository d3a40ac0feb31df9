#include "backends/cuda/nccl/guard.h"

#include <algorithm>

namespace concord::cuda {

void Rounds::add(Communicator* communicator) {
  const std::lock_guard lock(mutex_);
  members_.push_back(communicator);
  if (!thread_.joinable()) thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
  woken_ = true;
  changed_.notify_all();
}

void Rounds::remove(Communicator* communicator) {
  std::jthread last;  // stopped and joined at the end of this function, without the lock
  const std::lock_guard lock(mutex_);
  std::erase(members_, communicator);
  if (members_.empty()) last = std::move(thread_);
}

Clock::duration Rounds::period() const {
  Clock::duration shortest = std::chrono::milliseconds(200);
  for (const Communicator* communicator : members_) shortest = std::min(shortest, communicator->timeout() / 16);
  return std::max<Clock::duration>(shortest, std::chrono::milliseconds(5));
}

void Rounds::run(std::stop_token stop) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    for (Communicator* communicator : members_) (communicator->*visit_)(Clock::now());
    woken_ = false;
    changed_.wait_for(lock, stop, period(), [this] { return woken_; });
  }
}

void Guard::add(Communicator* communicator) {
  watches_.add(communicator);
  ticks_.add(communicator);
}

void Guard::remove(Communicator* communicator) {
  ticks_.remove(communicator);  // still watched: a tick may be stuck
  watches_.remove(communicator);
}

}  // namespace concord::cuda
