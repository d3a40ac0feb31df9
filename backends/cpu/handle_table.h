// Handles that can be checked: a number that looks like a pointer, never one. Whatever value a caller passes (garbage,
// a handle of another kind, one that was destroyed), looking it up reads only this table's own memory. Header-only.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "platform/base/thread_safety.hpp"
#include "platform/sdk/plugin.hpp"

namespace concord::cpu {

// The errors that a table throws.
struct HandleErrors {
  [[noreturn]] static void full(uint64_t live, const char* kind) {
    sdk::fail(CONCORD_STATUS_OUT_OF_MEMORY, sdk::text("there are already %lu live %ss; destroy some", live, kind));
  }
  // |has_tag|: |value| is of this kind, so it was a handle.
  [[noreturn]] static void invalid(uint64_t value, const char* kind, bool has_tag) {
    if (value == 0) sdk::invalid(sdk::text("the %s is null", kind));
    const char* why = has_tag ? "was destroyed" : "was not created by this plugin";
    sdk::invalid(sdk::text("invalid %s 0x%llx: it %s", kind, static_cast<unsigned long long>(value), why));
  }
};

// Handle is the ABI's pointer type, Object what it refers to, Errors like HandleErrors. A handle is tag (8 bits),
// generation (36), index (20): an index is used again, a generation is not. The tag differs between kinds and makes the
// value no valid address.
//
// Threads: any thread, any time; but a thread that uses a handle while another removes it may find the object gone.
// Owns: the table shares its objects until remove.
template <class Handle, class Object, class Errors = HandleErrors>
class HandleTable {
 public:
  HandleTable(uint8_t tag, const char* kind) : tag_(tag), kind_(kind) {}

  Handle insert(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    const uint64_t index = free_.empty() ? used_ : free_.back();
    if (index >= kChunks * kChunkSlots) Errors::full(used_, kind_);
    Slot& slot = grow_to(index);
    slot.object = std::move(object);
    const uint64_t handle = static_cast<uint64_t>(tag_) << 56 | (++generation_ & kGenerationMask) << kIndexBits | index;
    slot.handle.store(handle, std::memory_order_release);
    index == used_ ? static_cast<void>(++used_) : free_.pop_back();
    return reinterpret_cast<Handle>(handle);
  }

  // The object; INVALID_ARGUMENT if |handle| is not live. Some nanoseconds, no lock.
  Object& find(Handle handle) const { return *slot_of(handle).object; }
  std::shared_ptr<Object> share(Handle handle) const { return slot_of(handle).object; }
  // Like share(), while other threads may remove the handle.
  std::shared_ptr<Object> share_locked(Handle handle) const {
    const std::lock_guard lock(mutex_);
    return share(handle);
  }

  std::shared_ptr<Object> remove(Handle handle) {
    const std::lock_guard lock(mutex_);
    return take(slot_of(handle));
  }

  // Removes the objects for which |wanted| returns true. They are released after the table is unlocked.
  template <class Wanted>
  void remove_if(const Wanted& wanted) {
    std::vector<std::shared_ptr<Object>> removed;
    const std::lock_guard lock(mutex_);
    for (uint64_t index = 0; index < used_; ++index) {
      Slot& slot = slot_at(index);
      if (slot.object != nullptr && wanted(*slot.object)) removed.push_back(take(slot));
    }
  }

  std::vector<std::shared_ptr<Object>> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Object>> objects;
    for (uint64_t index = 0; index < used_; ++index) {
      const Slot& slot = slot_at(index);
      if (slot.object != nullptr) objects.push_back(slot.object);
    }
    return objects;
  }

 private:
  struct Slot {
    std::atomic<uint64_t> handle{0};  // 0 while free
    std::shared_ptr<Object> object;
  };
  static constexpr uint64_t kIndexBits = 20;
  static constexpr uint64_t kIndexMask = (1u << kIndexBits) - 1;
  static constexpr uint64_t kGenerationMask = (uint64_t{1} << 36) - 1;
  static constexpr uint64_t kChunkSlots = 1024;
  static constexpr uint64_t kChunks = (kIndexMask + 1) / kChunkSlots;
  using Chunk = std::array<Slot, kChunkSlots>;

  Slot& slot_of(Handle handle) const {
    const auto value = reinterpret_cast<uint64_t>(handle);
    const uint64_t index = value & kIndexMask;
    Chunk* chunk = value >> 56 == tag_ ? chunks_[index / kChunkSlots].load(std::memory_order_acquire) : nullptr;
    if (chunk != nullptr) {
      Slot& slot = (*chunk)[index % kChunkSlots];
      if (slot.handle.load(std::memory_order_acquire) == value) return slot;
    }
    Errors::invalid(value, kind_, value >> 56 == tag_);
  }

  Slot& slot_at(uint64_t index) const { return (*chunks_[index / kChunkSlots].load())[index % kChunkSlots]; }

  std::shared_ptr<Object> take(Slot& slot) CONCORD_REQUIRES(mutex_) {
    free_.push_back(slot.handle.load() & kIndexMask);
    slot.handle.store(0, std::memory_order_release);
    return std::move(slot.object);
  }

  Slot& grow_to(uint64_t index) CONCORD_REQUIRES(mutex_) {
    std::atomic<Chunk*>& chunk = chunks_[index / kChunkSlots];
    if (chunk.load() == nullptr) {
      owned_.push_back(std::make_unique<Chunk>());
      chunk.store(owned_.back().get(), std::memory_order_release);
    }
    return slot_at(index);
  }

  const uint8_t tag_;
  const char* const kind_;
  mutable std::mutex mutex_;  // guards all below; finding reads the atomics without it
  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
  std::vector<std::unique_ptr<Chunk>> owned_ CONCORD_GUARDED_BY(mutex_);
  std::vector<uint64_t> free_ CONCORD_GUARDED_BY(mutex_);
  uint64_t used_ CONCORD_GUARDED_BY(mutex_) = 0;
  uint64_t generation_ CONCORD_GUARDED_BY(mutex_) = 0;
};

}  // namespace concord::cpu
