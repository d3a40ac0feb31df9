// A place to wait for a condition over atomics: first awake, for a short while, then asleep. Header-only.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace concord::cpu {

inline constexpr auto kNever = std::chrono::steady_clock::time_point::max();

// Spins for a moment and then yields the core between checks, so that threads which outnumber the cores do not waste
// each other's time. Returns true as soon as |ready|() does, false after about 20 us.
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

// Threads: any. A thread that changes the condition uses a sequentially consistent store, then calls notify_all;
// |ready| reads it by sequentially consistent loads. In their total order either the store precedes the sleeper's last
// check, or the sleeper is counted before notify_all looks for it: no wake-up is lost, and no system call is made
// without a sleeper.
class Parking {
 public:
  template <class Ready>
  void wait(Ready&& ready) {
    wait_until(kNever, ready);
  }

  // Returns false if |deadline| passed first; kNever: no limit.
  template <class Ready>
  bool wait_until(std::chrono::steady_clock::time_point deadline, Ready&& ready) {
    if (stay_awake_until(ready)) return true;
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    bool done = true;
    if (deadline == kNever) {
      wake_.wait(lock, ready);  // without a clock: time_point::max overflows in some implementations of wait_until
    } else {
      done = wake_.wait_until(lock, deadline, ready);
    }
    sleepers_.fetch_sub(1);
    return done;
  }

  void notify_all() {
    if (sleepers_.load() == 0) return;
    // A sleeper that has checked but does not sleep yet holds the mutex: passing through it orders us after that.
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
