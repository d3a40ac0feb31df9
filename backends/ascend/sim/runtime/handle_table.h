// Checked handles: numbers of a pointer's size that are never valid addresses. Whatever a caller passes (garbage, a
// handle of another kind, a destroyed handle), looking it up reads only this table's memory. Header-only.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "backends/ascend/sim/runtime/error.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {

// A handle consists of a tag (8 bits), which makes it an invalid address, and a number that is never reused.
// Threads: any. Owns: shares its objects until remove.
template <class Object>
class HandleTable {
 public:
  HandleTable(uint8_t tag, const char* kind) : tag_(tag), kind_(kind) {}

  void* insert(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    const uint64_t value = static_cast<uint64_t>(tag_) << 56 | (++last_ << 4);
    objects_.emplace(value, std::move(object));
    return reinterpret_cast<void*>(value);
  }

  // Throws 107017 if |handle| is not live.
  std::shared_ptr<Object> find(const void* handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uint64_t>(handle));
    if (found == objects_.end()) refuse(handle);
    return found->second;
  }

  std::shared_ptr<Object> remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uint64_t>(handle));
    if (found == objects_.end()) refuse(handle);
    std::shared_ptr<Object> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  // The objects are destroyed after the table's lock is released.
  template <class Wanted>
  void remove_if(Wanted&& wanted) {
    std::vector<std::shared_ptr<Object>> removed;
    const std::lock_guard lock(mutex_);
    for (auto entry = objects_.begin(); entry != objects_.end();) {
      if (!wanted(*entry->second)) {
        ++entry;
        continue;
      }
      removed.push_back(std::move(entry->second));
      entry = objects_.erase(entry);
    }
  }

  std::vector<std::shared_ptr<Object>> all() const {
    const std::shared_lock lock(mutex_);
    std::vector<std::shared_ptr<Object>> objects;
    for (const auto& [handle, object] : objects_) objects.push_back(object);
    return objects;
  }

 private:
  [[noreturn]] void refuse(const void* handle) const CONCORD_REQUIRES_SHARED(mutex_) {
    const auto value = reinterpret_cast<uint64_t>(handle);
    const bool was_one = value >> 56 == tag_ && (value >> 4 & ((uint64_t{1} << 52) - 1)) <= last_;
    fail(abi::kRtInvalidHandle, text("%p is not a valid %s: it %s", handle, kind_,
                                     was_one ? "was destroyed" : "was not created by this runtime"));
  }

  const uint8_t tag_;
  const char* const kind_;
  mutable std::shared_mutex mutex_;  // guards all below
  std::unordered_map<uint64_t, std::shared_ptr<Object>> objects_ CONCORD_GUARDED_BY(mutex_);
  uint64_t last_ CONCORD_GUARDED_BY(mutex_) = 0;
};

}  // namespace concord::ascend::sim
