// Letting other threads run while a rank waits for something that is about to happen.
//
// Where the processors have nothing else to do, or only fellow ranks to run, a yield is over in microseconds and beats
// sleeping. Where other programs keep them busy it lasts for a time slice of theirs, milliseconds, while a rank that
// sleeps is woken as soon as there is news. Threads: one at a time.
#pragma once

#include <sched.h>

#include <chrono>

namespace concord::shm {

class Yielding {
 public:
  // Yields, unless that has recently taken long. Returns false if the caller should sleep instead.
  bool yield() {
    if (wary_ > 0) {
      --wary_;
      return false;
    }
    const auto start = std::chrono::steady_clock::now();
    ::sched_yield();
    if (std::chrono::steady_clock::now() - start > kLong) wary_ = kWary;
    return wary_ == 0;
  }

 private:
  static constexpr std::chrono::microseconds kLong{500};
  static constexpr int kWary = 100;  // times that it does not try again
  int wary_ = 0;
};

}  // namespace concord::shm
