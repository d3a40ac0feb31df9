// The guard of the process's live communicators, see communicator.h: two threads that visit each of them a few times a
// second, one for ticks, which may block inside CUDA, and one for watches, which abort blocked communicators. They run
// while there is a communicator. Ticks do not disturb a capture: their thread is in CUDA's relaxed capture mode.
// Threads: any thread, any time.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/cuda/nccl/communicator.h"
#include "platform/base/thread_safety.hpp"

namespace concord::cuda {

// A thread that calls |visit| of every member periodically.
class Rounds {
 public:
  using Visit = void (Communicator::*)(Clock::time_point) noexcept;
  explicit Rounds(Visit visit) : visit_(visit) {}

  void add(Communicator* communicator);
  // When it returns, no visit uses |communicator|. Waits: for a visit in progress, and for the thread's exit if it was
  // the last communicator.
  void remove(Communicator* communicator);

  // Calls |body| for each; it may throw. Waits: for a round in progress.
  template <class Body>
  void for_each(Body&& body) {
    const std::lock_guard lock(mutex_);
    for (Communicator* communicator : members_) body(*communicator);
  }

 private:
  void run(std::stop_token stop);
  Clock::duration period() const;

  const Visit visit_;
  std::mutex mutex_;  // guards what follows, and held during visits; taken before a communicator's own
  std::condition_variable_any changed_;
  std::vector<Communicator*> members_ CONCORD_GUARDED_BY(mutex_);
  bool woken_ CONCORD_GUARDED_BY(mutex_) = false;  // a member was added, whose period may be shorter
  std::jthread thread_;
};

class Guard {
 public:
  void add(Communicator* communicator);
  // When it returns, the guard does not use |communicator|. Waits: for a tick in progress, whose time watches bound.
  void remove(Communicator* communicator);

  // Calls |body| for each; it may throw. Waits: like remove().
  template <class Body>
  void for_each(Body&& body) {
    ticks_.for_each(body);
  }

 private:
  Rounds watches_{&Communicator::watch};
  Rounds ticks_{&Communicator::tick};
};

}  // namespace concord::cuda
