// A place to wait for a condition over atomics: first awake, for a short while, then asleep. Header-only.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace concord::ascend::sim {

using Clock = std::chrono::steady_clock;

// Threads: any. Who changes the condition does so by a sequentially consistent store, then calls notify_all; who waits
// reads it by sequentially consistent loads within |ready|. In their common order either the store comes before the
// sleeper's last look, or the sleeper is counted before notify_all looks for it: no wake-up is lost.
class Parking {
 public:
  // False if |deadline| passed first.
  template <class Ready>
  bool wait_until(Clock::time_point deadline, Ready&& ready) {
    for (int i = 0; i < kLooks; ++i) {
      if (ready()) return true;
      relax();
    }
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    const bool done = wait_asleep(lock, deadline, ready);
    sleepers_.fetch_sub(1);
    return done;
  }

  template <class Ready>
  void wait(Ready&& ready) {
    wait_until(Clock::time_point::max(), ready);
  }

  void notify_all() {
    if (sleepers_.load() == 0) return;
    {
      const std::lock_guard lock(mutex_);
    }  // orders us after a sleeper that has checked but does not sleep yet
    wake_.notify_all();
  }

 private:
  // A few microseconds. Not longer, and no sched_yield: streams outnumber the cores, and who yields on a busy machine
  // is away for as long as the others like.
  static constexpr int kLooks = 200;
  static void relax() {
#if defined(__aarch64__)
    __asm__ __volatile__("isb");  // "yield" is over immediately on most ARM cores
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  // Without a limit there is no clock to compare with: time_point::max overflows in some implementations.
  template <class Ready>
  bool wait_asleep(std::unique_lock<std::mutex>& lock, Clock::time_point deadline, Ready&& ready) {
    if (deadline != Clock::time_point::max()) return wake_.wait_until(lock, deadline, ready);
    wake_.wait(lock, ready);
    return true;
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
};

}  // namespace concord::ascend::sim
