// The handles that a table gave out and did not take back yet. CUDA does not check what it is given, so that this is
// what prevents a crash on a second destroy. Used only by create and destroy.
// Threads: any thread, any time.
#pragma once

#include <mutex>
#include <unordered_set>

#include "platform/base/thread_safety.hpp"
#include "platform/sdk/plugin.hpp"

namespace concord::cuda {

template <class Handle>
class Handles {
 public:
  explicit Handles(const char* what) : what_(what) {}

  void add(Handle handle) {
    const std::lock_guard lock(mutex_);
    live_.insert(handle);
  }

  // INVALID_ARGUMENT if |handle| is null, not from create, or destroyed before.
  void remove(Handle handle) {
    const std::lock_guard lock(mutex_);
    if (live_.erase(handle) == 0) {
      sdk::invalid(sdk::text("%p is not a live %s created by this plugin", static_cast<const void*>(handle), what_));
    }
  }

 private:
  const char* what_;
  std::mutex mutex_;
  std::unordered_set<Handle> live_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord::cuda
