// The live handles of a table. Vendors do not check the handles that they are given, so only this prevents a crash on a
// second destroy. Header-only. Threads: any thread, any time.
#pragma once

#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <variant>

#include "platform/base/thread_safety.hpp"
#include "platform/sdk/failure.hpp"

namespace concord::sdk {

// |Known| is what the backend stores with each handle, for example its device.
template <class Handle, class Known = std::monostate>
class Handles {
 public:
  explicit Handles(const char* what) : what_(what) {}

  void add(Handle handle, Known known = {}) {
    const std::unique_lock lock(mutex_);
    live_.insert_or_assign(handle, known);
  }

  // Removes |handle| and returns what was stored with it. INVALID_ARGUMENT if it is null, not from create, or destroyed
  // before.
  Known remove(Handle handle) {
    const std::unique_lock lock(mutex_);
    const auto found = live_.find(handle);
    if (found == live_.end()) {
      invalid(text("%p is not a live %s created by this plugin", static_cast<const void*>(handle), what_));
    }
    const Known known = found->second;
    live_.erase(found);
    return known;
  }

  // Returns nullopt for handles that others (libtorch) have created.
  std::optional<Known> find(Handle handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = live_.find(handle);
    return found != live_.end() ? std::optional<Known>(found->second) : std::nullopt;
  }

 private:
  const char* what_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<Handle, Known> live_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord::sdk
