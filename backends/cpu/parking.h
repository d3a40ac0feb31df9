// A place to wait for a condition over atomics: first awake, for a short while, then asleep. Header-only.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace concord::cpu {

// Spins a moment and then gives the core away between looks, so that threads which outnumber the cores do not burn each
// other's time. True as soon as |ready|() is; false when some 20 us have passed.
template <class Ready>
bool stay_awake_until(Ready&& ready) {
  for (int i = 0; i < 64; ++i) {
    if (ready()) return true;
#if defined(__aarch64__)
    __asm__ __volatile__("isb");  // "yield" is over immediately on most ARM cores
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  for (int i = 0; i < 40; ++i) {
    if (ready()) return true;
    sched_yield();
  }
  return false;
}

// Threads: any. Who changes the condition does so by a sequentially consistent store, then calls notify_all; who waits
// reads it by sequentially consistent loads within |ready|. In their common order either the store comes before the
// sleeper's last look, or the sleeper is counted before notify_all looks for it: no wake-up is lost, and nothing pays
// for one in vain.
class Parking {
 public:
  template <class Ready>
  void wait(Ready&& ready) {
    if (stay_awake_until(ready)) return;
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, ready);
    sleepers_.fetch_sub(1);
  }

  // False if |deadline| passed first.
  template <class Ready>
  bool wait_until(std::chrono::steady_clock::time_point deadline, Ready&& ready) {
    if (stay_awake_until(ready)) return true;
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    const bool done = wake_.wait_until(lock, deadline, ready);
    sleepers_.fetch_sub(1);
    return done;
  }

  void notify_all() {
    if (sleepers_.load() == 0) return;
    // A sleeper that has looked but not yet begun to sleep holds the mutex: passing through it orders us after that.
    {
      const std::lock_guard lock(mutex_);
    }
    wake_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
};

}  // namespace concord::cpu
