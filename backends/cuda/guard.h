// The guard: one thread that ticks every live communicator of the process a few times a second, see communicator.h. It
// runs while there is one. Its CUDA calls disturb no capture: it is in the relaxed capture mode.
// Threads: any thread, any time.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/cuda/communicator.h"

namespace concord::cuda {

class Guard {
 public:
  void add(Communicator* communicator);
  // Afterwards the guard does not touch it. Waits: for a tick under way, and for the thread's end with the last one.
  void remove(Communicator* communicator);

  // Calls |visit| for each; it may throw.
  template <class Visit>
  void for_each(Visit&& visit) {
    const std::lock_guard lock(mutex_);
    for (Communicator* communicator : members_) visit(*communicator);
  }

 private:
  void run(std::stop_token stop);
  Clock::duration period() const;

  std::mutex mutex_;  // guards what follows; taken before a communicator's own
  std::condition_variable_any changed_;
  std::vector<Communicator*> members_;
  bool woken_ = false;  // a member came: its period may be shorter
  std::jthread thread_;
};

}  // namespace concord::cuda
